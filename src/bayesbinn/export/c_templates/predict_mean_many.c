int model_predict_std(const float *input, float *mean, float *std, void *buffer, size_t buffer_bytes)
{
    const int problem = model_check_buffer(buffer, buffer_bytes);
    if (problem != 0) {
        return problem;
    }
    model_shared(input, (float *)buffer);
    for (size_t network = 0; network < MODEL_NETWORKS; network++) {
        model_own(input, (float *)buffer, network);
        const float *z = MODEL_RESULT;
        for (size_t k = 0; k < MODEL_OUTPUTS; k++) {
            const float before = network == 0u ? 0.0f : mean[k], step = z[k] - before;
            mean[k] = before + step / (float)(network + 1u);
            std[k] = network == 0u ? 0.0f : std[k] + step * (z[k] - mean[k]);
        }
    }
    for (size_t k = 0; k < MODEL_OUTPUTS; k++) {
        std[k] = sqrtf(std[k] / (float)(MODEL_NETWORKS - 1u));
    }
    return 0;
}

int model_predict(const float *input, float *output, void *buffer, size_t buffer_bytes)
{
    const int problem = model_check_buffer(buffer, buffer_bytes);
    return problem != 0 ? problem
                        : model_predict_std(input, output, (float *)buffer + MODEL_ANSWER, buffer, buffer_bytes);
}
