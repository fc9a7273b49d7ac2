int model_predict(const float *input, float *output, void *buffer, size_t buffer_bytes)
{
    const int problem = model_check_buffer(buffer, buffer_bytes);
    if (problem != 0) {
        return problem;
    }
    model_shared(input, (float *)buffer);
    model_logits(output, MODEL_RESULT);
    return 0;
}
