typedef struct {
    size_t channels, height, width, out_height, out_width;
    size_t kernel_height, kernel_width, stride_y, stride_x, dilation_y, dilation_x, top, left;
    int count_padding;
} model_pool2d_shape;
