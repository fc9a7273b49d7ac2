/* x = x * scale + shift, where the channel changes every `inner` numbers; NULL means 1 or 0. */
static void model_scale(float *y, const float *x, const float *scale, const float *shift, size_t count, size_t channels,
                        size_t inner)
{
    for (size_t i = 0; i < count; i++) {
        const size_t c = i / inner % channels;
        float value = x[i];
        if (scale != NULL) {
            value *= scale[c];
        }
        if (shift != NULL) {
            value += shift[c];
        }
        y[i] = value;
    }
}
