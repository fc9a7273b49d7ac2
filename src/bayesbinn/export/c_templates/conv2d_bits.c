/* A convolution whose weights are bits: +x where the bit is 1, -x where it is 0. */
static void model_conv2d_bits(float *y, const float *x, const uint8_t *weight, const model_conv2d_shape *s)
{
    const size_t row = s->group_inputs * s->kernel_height * s->kernel_width;
    for (size_t i = 0; i < s->out_channels * s->out_height * s->out_width; i++) {
        y[i] = 0.0f;
    }
    for (size_t o = 0; o < s->out_channels; o++) {
        const uint8_t *own = weight + o * ((row + 7u) / 8u);
        for (size_t k = 0; k < row; k++) { /* each weight is read once */
            const size_t u = k / s->kernel_width % s->kernel_height, v = k % s->kernel_width;
            const size_t c = o / s->group_outputs * s->group_inputs + k / (s->kernel_height * s->kernel_width);
            size_t top, bottom, left, right;
            model_conv2d_range(u * s->dilation_y, s->top, s->height, s->stride_y, s->out_height, &top, &bottom);
            model_conv2d_range(v * s->dilation_x, s->left, s->width, s->stride_x, s->out_width, &left, &right);
            for (size_t i = top; i < bottom && left < right; i++) {
                const size_t line = c * s->height + i * s->stride_y + u * s->dilation_y - s->top;
                const float *in = x + line * s->width + left * s->stride_x + v * s->dilation_x - s->left;
                float *out = y + (o * s->out_height + i) * s->out_width;
                if (((unsigned)own[k / 8u] >> (k % 8u)) & 1u) {
                    for (size_t j = left; j < right; j++, in += s->stride_x) {
                        out[j] += *in;
                    }
                } else {
                    for (size_t j = left; j < right; j++, in += s->stride_x) {
                        out[j] -= *in;
                    }
                }
            }
        }
    }
}
