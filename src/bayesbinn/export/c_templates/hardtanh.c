static void model_hardtanh(float *y, const float *x, size_t count, float least, float most)
{
    for (size_t i = 0; i < count; i++) {
        y[i] = x[i] < least ? least : x[i] > most ? most : x[i];
    }
}
