/* y[r][o] = sum over k of weight[o][k] * x[r][k]. */
static void model_linear_real(float *y, const float *x, const float *weight, size_t rows, size_t outputs, size_t inputs)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t o = 0; o < outputs; o++) {
            float sum = 0.0f;
            for (size_t k = 0; k < inputs; k++) {
                sum += weight[o * inputs + k] * x[r * inputs + k];
            }
            y[r * outputs + o] = sum;
        }
    }
}
