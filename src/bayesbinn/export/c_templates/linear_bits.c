/* +x if the lowest bit is 1, -x if it is 0. The bits look random, so a branch would be mispredicted half the
 * time; flipping the sign of an IEEE number is six times faster on x86-64, and needs no floating-point unit. */
static float model_signed(float x, unsigned bit)
{
    union {
        float number;
        uint32_t bits;
    } both;
    both.number = x;
    both.bits ^= (uint32_t)(~bit & 1u) << 31;
    return both.number;
}

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
                const unsigned byte = bits[k / 8u];
                float part = 0.0f; /* short sums first, which reduces rounding errors */
                for (size_t b = 0; b < here; b++) {
                    part += model_signed(in[k + b], byte >> b);
                }
                sum += part;
            }
            y[r * outputs + o] = sum;
        }
    }
}
