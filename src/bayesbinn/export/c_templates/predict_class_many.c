/* log(exp(a) + exp(b)) without overflow. */
static float model_log_sum(float a, float b)
{
    const float most = a > b ? a : b, least = a > b ? b : a;
    return most + log1pf(expf(least - most));
}

int model_predict(const float *input, float *output, void *buffer, size_t buffer_bytes)
{
    const int problem = model_check_buffer(buffer, buffer_bytes);
    if (problem != 0) {
        return problem;
    }
    float *logits = (float *)buffer + MODEL_SCRATCH;
    model_shared(input, (float *)buffer);
    for (size_t network = 0; network < MODEL_NETWORKS; network++) {
        model_own(input, (float *)buffer, network);
        model_logits(logits, MODEL_RESULT);
        float total = logits[0];
        for (size_t k = 1; k < MODEL_OUTPUTS; k++) {
            total = model_log_sum(total, logits[k]);
        }
        for (size_t k = 0; k < MODEL_OUTPUTS; k++) {
            output[k] = network == 0u ? logits[k] - total : model_log_sum(output[k], logits[k] - total);
        }
    }
    for (size_t k = 0; k < MODEL_OUTPUTS; k++) {
        output[k] -= logf((float)MODEL_NETWORKS);
    }
    return 0;
}
