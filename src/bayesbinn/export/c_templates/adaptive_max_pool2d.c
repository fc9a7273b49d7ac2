/* Part i of n on an axis of length L: from floor(i L / n) up to ceil((i + 1) L / n). */
static void model_adaptive_max_pool2d(float *y, const float *x, size_t channels, size_t height, size_t width,
                                     size_t out_height, size_t out_width)
{
    for (size_t c = 0; c < channels; c++) {
        for (size_t i = 0; i < out_height; i++) {
            const size_t top = i * height / out_height, bottom = ((i + 1u) * height + out_height - 1u) / out_height;
            for (size_t j = 0; j < out_width; j++) {
                const size_t left = j * width / out_width, right = ((j + 1u) * width + out_width - 1u) / out_width;
                float best = x[(c * height + top) * width + left];
                for (size_t u = top; u < bottom; u++) {
                    for (size_t v = left; v < right; v++) {
                        const float value = x[(c * height + u) * width + v];
                        best = value > best || value != value ? value : best; /* a NaN wins */
                    }
                }
                y[(c * out_height + i) * out_width + j] = best;
            }
        }
    }
}
