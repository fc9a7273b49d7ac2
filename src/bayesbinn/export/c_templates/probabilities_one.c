int model_probabilities(const float *input, float *output, void *buffer, size_t buffer_bytes)
{
    const int problem = model_predict(input, output, buffer, buffer_bytes);
    if (problem == 0) {
        model_softmax(output, output, 1u, MODEL_OUTPUTS, 1u);
    }
    return problem;
}
