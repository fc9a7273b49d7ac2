int model_classify(const float *input, void *buffer, size_t buffer_bytes)
{
    const int problem = model_check_buffer(buffer, buffer_bytes);
    if (problem != 0) {
        return problem;
    }
    float *answer = (float *)buffer + MODEL_ANSWER;
    int best = 0;
    (void)model_predict(input, answer, buffer, buffer_bytes);
    for (int k = 0; k < (int)MODEL_OUTPUTS; k++) {
        if (answer[k] != answer[k]) {
            return MODEL_NOT_A_NUMBER;
        }
        best = answer[k] > answer[best] ? k : best;
    }
    return best;
}
