static int model_check_buffer(const void *buffer, size_t buffer_bytes)
{
    if (buffer == NULL || buffer_bytes < MODEL_BUFFER_BYTES) {
        return MODEL_BUFFER_TOO_SMALL;
    }
    return (uintptr_t)buffer % sizeof(float) != 0u ? MODEL_BUFFER_MISALIGNED : 0;
}
