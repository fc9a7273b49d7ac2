/* Along an axis of `length` numbers that are `inner` apart. */
static void model_softmax(float *y, const float *x, size_t outer, size_t length, size_t inner)
{
    for (size_t o = 0; o < outer; o++) {
        for (size_t i = 0; i < inner; i++) {
            const size_t start = o * length * inner + i;
            float most = x[start], sum = 0.0f;
            for (size_t k = 1; k < length; k++) {
                const float value = x[start + k * inner];
                most = value > most ? value : most;
            }
            for (size_t k = 0; k < length; k++) {
                y[start + k * inner] = expf(x[start + k * inner] - most);
                sum += y[start + k * inner];
            }
            for (size_t k = 0; k < length; k++) {
                y[start + k * inner] /= sum;
            }
        }
    }
}
