static void model_relu(float *y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        y[i] = x[i] < 0.0f ? 0.0f : x[i]; /* NaN stays NaN */
    }
}
