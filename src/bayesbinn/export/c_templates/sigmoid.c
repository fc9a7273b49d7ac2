static void model_sigmoid(float *y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        y[i] = 1.0f / (1.0f + expf(-x[i]));
    }
}
