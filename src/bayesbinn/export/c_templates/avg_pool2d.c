/* Where a window, counted from the edge of the padding, starts and ends on an axis; padding may count as pixels. */
static void model_pool_range(size_t start, size_t kernel, size_t padding, size_t length, size_t *from, size_t *to,
                             size_t *padded)
{
    const size_t end = start + kernel, edge = length + 2u * padding;
    *padded = (end < edge ? end : edge) - start;
    *from = start < padding ? 0u : start - padding;
    *to = end < padding ? 0u : end - padding;
    *to = *to < length ? *to : length;
}

static void model_avg_pool2d(float *y, const float *x, const model_pool2d_shape *s)
{
    for (size_t c = 0; c < s->channels; c++) {
        for (size_t i = 0; i < s->out_height; i++) {
            size_t top, bottom, rows;
            model_pool_range(i * s->stride_y, s->kernel_height, s->top, s->height, &top, &bottom, &rows);
            for (size_t j = 0; j < s->out_width; j++) {
                size_t left, right, columns;
                float sum = 0.0f;
                model_pool_range(j * s->stride_x, s->kernel_width, s->left, s->width, &left, &right, &columns);
                for (size_t u = top; u < bottom; u++) {
                    for (size_t v = left; v < right; v++) {
                        sum += x[(c * s->height + u) * s->width + v];
                    }
                }
                y[(c * s->out_height + i) * s->out_width + j] =
                    sum / (float)(s->count_padding ? rows * columns : (bottom - top) * (right - left));
            }
        }
    }
}
