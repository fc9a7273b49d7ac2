typedef struct {
    size_t height, width, out_channels, out_height, out_width;
    size_t group_inputs, group_outputs; /* channels of one group */
    size_t kernel_height, kernel_width, stride_y, stride_x, dilation_y, dilation_x, top, left;
} model_conv2d_shape;

/* One position of the kernel, `offset` from its start: the outputs from *first up to *end (exclusive) see a pixel
 * there, and the others see padding, which is 0. */
static void model_conv2d_range(size_t offset, size_t padding, size_t length, size_t stride, size_t outputs, size_t *first,
                               size_t *end)
{
    *first = offset < padding ? (padding - offset + stride - 1u) / stride : 0u;
    *end = offset < padding + length ? (padding + length - offset + stride - 1u) / stride : 0u;
    *end = *end < outputs ? *end : outputs;
}
