static void model_add(float *y, const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        y[i] = a[i] + b[i];
    }
}
