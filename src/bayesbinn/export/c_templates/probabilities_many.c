int model_probabilities(const float *input, float *output, void *buffer, size_t buffer_bytes)
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
        model_softmax(logits, logits, 1u, MODEL_OUTPUTS, 1u);
        for (size_t k = 0; k < MODEL_OUTPUTS; k++) {
            output[k] = (network == 0u ? 0.0f : output[k]) + logits[k] / (float)MODEL_NETWORKS;
        }
    }
    return 0;
}
