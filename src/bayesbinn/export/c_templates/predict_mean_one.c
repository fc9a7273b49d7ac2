int model_predict(const float *input, float *output, void *buffer, size_t buffer_bytes)
{
    const int problem = model_check_buffer(buffer, buffer_bytes);
    if (problem != 0) {
        return problem;
    }
    model_shared(input, (float *)buffer);
    memcpy(output, MODEL_RESULT, MODEL_OUTPUTS * sizeof(float));
    return 0;
}
