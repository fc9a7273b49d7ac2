static void model_max_pool2d(float *y, const float *x, const model_pool2d_shape *s)
{
    for (size_t c = 0; c < s->channels; c++) {
        for (size_t i = 0; i < s->out_height; i++) {
            for (size_t j = 0; j < s->out_width; j++) {
                float best = 0.0f;
                int found = 0;
                for (size_t u = 0; u < s->kernel_height; u++) {
                    const size_t from_top = i * s->stride_y + u * s->dilation_y;
                    if (from_top < s->top || from_top - s->top >= s->height) {
                        continue; /* padding is never the largest */
                    }
                    for (size_t v = 0; v < s->kernel_width; v++) {
                        const size_t from_left = j * s->stride_x + v * s->dilation_x;
                        if (from_left < s->left || from_left - s->left >= s->width) {
                            continue;
                        }
                        const float value = x[(c * s->height + from_top - s->top) * s->width + from_left - s->left];
                        if (!found || value > best || value != value) { /* a NaN wins */
                            best = value;
                            found = 1;
                        }
                    }
                }
                y[(c * s->out_height + i) * s->out_width + j] = best;
            }
        }
    }
}
