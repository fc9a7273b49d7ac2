/* y[r][o] = sum of +x[r][k] where bit k of row o is 1 and of -x[r][k] where it is 0. */
static void model_linear_bits(float *y, const float *x, const uint8_t *weight, size_t rows, size_t outputs, size_t inputs)
{
    const size_t row_bytes = (inputs + 7u) / 8u;
    for (size_t r = 0; r < rows; r++) {
        const float *in = x + r * inputs;
        for (size_t o = 0; o < outputs; o++) {
            const uint8_t *bits = weight + o * row_bytes;
            float sum = 0.0f;
            for (size_t k = 0; k < inputs; k += 8u) {
                const size_t here = inputs - k < 8u ? inputs - k : 8u;
                unsigned byte = bits[k / 8u];
                float part = 0.0f; /* short sums first: less is lost to rounding */
                for (size_t b = 0; b < here; b++) {
                    part += (byte & 1u) ? in[k + b] : -in[k + b];
                    byte >>= 1;
                }
                sum += part;
            }
            y[r * outputs + o] = sum;
        }
    }
}
