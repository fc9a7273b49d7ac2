static void model_tanh(float *y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        y[i] = tanhf(x[i]);
    }
}
