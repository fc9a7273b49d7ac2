#include "convolution.hpp"

namespace bayesbinn::inference {
namespace {

// Windows whose tables and totals stay in the second-level cache while all tiles of weights are used.
constexpr size_t RING_BUDGET = 192 << 10;
constexpr size_t MAX_WINDOWS = 256;
// Bytes of tables per thread, however wide the image and however far apart its taps.
constexpr size_t MAX_RING = 8 << 20;

}  // namespace

// Where a thread keeps its part of the work.
struct TableConvolution::Ring {
    uint8_t *tables;
    int32_t *magnitudes;         // [ring row][column]: Σ|q| of a pixel
    int32_t *window_magnitudes;  // [row of the strip][x of the part]
    uint32_t *offsets;           // [row of the strip][block]
    int32_t *totals;             // [MAX_WINDOWS][TILE]
    uint8_t *indices;            // of a chunk

    Ring(const TableConvolution &c, std::byte *scratch) {
        tables = reinterpret_cast<uint8_t *>(scratch);
        scratch += round_up(c.ring_rows_ * c.columns_ * c.pixel_bytes_, LINE);
        magnitudes = reinterpret_cast<int32_t *>(scratch);
        scratch += round_up(c.ring_rows_ * c.columns_ * sizeof(int32_t), LINE);
        window_magnitudes = reinterpret_cast<int32_t *>(scratch);
        scratch += round_up(c.strip_ * c.wide_ * sizeof(int32_t), LINE);
        offsets = reinterpret_cast<uint32_t *>(scratch);
        scratch += round_up(c.strip_ * c.blocks_ * sizeof(uint32_t), LINE);
        totals = reinterpret_cast<int32_t *>(scratch);
        scratch += MAX_WINDOWS * TILE * sizeof(int32_t);
        indices = reinterpret_cast<uint8_t *>(scratch);
    }
};

bool TableConvolution::suits(const Geometry &geometry) {
    const size_t groups = tap_positions(geometry) / GROUP;
    const size_t run = geometry.dilation_width == 1 ? groups * geometry.kernel_width : groups;
    if (geometry.groups != 1 || groups % 2 || run % BLOCK) return false;
    // Neighboring parts share the columns of a window: a part must be wide enough that few tables are built twice.
    const size_t columns =
        std::min(geometry.columns_of(geometry.out_width), 2 * geometry.span_width() + geometry.stride_width);
    return geometry.span_height() <= MAX_RING / (groups * TABLE) / columns;
}

TableConvolution::TableConvolution(
    size_t input, size_t output, Geometry geometry, PackedSets weights, Finishing finishing
)
    : Step({input}, output), g_(geometry), weights_(weights), finishing_(std::move(finishing)) {
    pixel_bytes_ = tap_positions(g_) / GROUP * TABLE;
    blocks_ = g_.taps() * pixel_bytes_ / (BLOCK * TABLE);
    const size_t span = g_.span_height(), max_columns = MAX_RING / (span * pixel_bytes_);
    wide_ = std::min(g_.out_width, (max_columns - g_.span_width()) / g_.stride_width + 1);
    columns_ = g_.columns_of(wide_);
    const size_t row_bytes = columns_ * pixel_bytes_;
    strip_ = 1;
    while (strip_ < g_.out_height && strip_ * g_.stride_height + span <= RING_BUDGET / row_bytes &&
           (strip_ + 1) * wide_ <= MAX_WINDOWS)
        strip_++;
    ring_rows_ = (strip_ - 1) * g_.stride_height + span;
}

size_t TableConvolution::scratch_bytes() const {
    return round_up(ring_rows_ * columns_ * pixel_bytes_, LINE) +
        round_up(ring_rows_ * columns_ * sizeof(int32_t), LINE) + round_up(strip_ * wide_ * sizeof(int32_t), LINE) +
        round_up(strip_ * blocks_ * sizeof(uint32_t), LINE) + MAX_WINDOWS * TILE * sizeof(int32_t) +
        LookUpChunks::BYTES;
}

// The part of row `row` of the padded image that a part's windows read.
void TableConvolution::build_row(
    const Kernels &kernels, const float *image, size_t row, Columns part, float inverse, const Ring &ring
) const {
    uint8_t *tables = ring.tables + row % ring_rows_ * columns_ * pixel_bytes_;
    int32_t *magnitudes = ring.magnitudes + row % ring_rows_ * columns_;
    const bool outside = row < g_.top || row - g_.top >= g_.height || inverse == 0.0f;
    const size_t first = part.first * g_.stride_width, count = g_.columns_of(part.last - part.first);
    for (size_t i = 0; i < count; i++, tables += pixel_bytes_) {
        const size_t column = first + i;
        if (outside || column < g_.left || column - g_.left >= g_.width) {
            memset(tables, 0, pixel_bytes_);
            magnitudes[i] = 0;
        } else {
            const float *pixel = image + ((row - g_.top) * g_.width + column - g_.left) * g_.channels;
            magnitudes[i] = kernels.build_tables(pixel, g_.channels, inverse, tables);
        }
    }
}

// Offsets of the blocks of a window in output row y, from the window's first column.
void TableConvolution::offsets_of(size_t y, uint32_t *offsets) const {
    const bool neighbors = g_.dilation_width == 1;
    const size_t runs = neighbors ? 1 : g_.kernel_width;
    const size_t run_bytes = neighbors ? g_.kernel_width * pixel_bytes_ : pixel_bytes_;
    for (size_t tap_y = 0; tap_y < g_.kernel_height; tap_y++) {
        const size_t row = (y * g_.stride_height + tap_y * g_.dilation_height) % ring_rows_;
        for (size_t run = 0; run < runs; run++)
            for (size_t at = 0; at < run_bytes; at += BLOCK * TABLE)
                *offsets++ = (uint32_t)((row * columns_ + run * g_.dilation_width) * pixel_bytes_ + at);
    }
}

// x is counted from the part's first column.
int32_t TableConvolution::magnitude_of(size_t y, size_t x, const Ring &ring) const {
    int32_t sum = 0;
    for (size_t tap_y = 0; tap_y < g_.kernel_height; tap_y++) {
        const size_t row = (y * g_.stride_height + tap_y * g_.dilation_height) % ring_rows_;
        for (size_t tap_x = 0; tap_x < g_.kernel_width; tap_x++)
            sum += ring.magnitudes[row * columns_ + x * g_.stride_width + tap_x * g_.dilation_width];
    }
    return sum;
}

void TableConvolution::run(const Frame &frame, size_t task, std::byte *scratch) const {
    const Band band(frame, output, g_.out_height, task / parts());
    const size_t from = task % parts() * wide_;
    const Columns part{from, std::min(from + wide_, g_.out_width)};
    const Ring ring(*this, scratch);
    const float *image = frame.get(inputs[0], frame.network, band.example);
    const Quantization scale = Quantization::of(frame.kernels.largest(image, g_.height * g_.width * g_.channels));
    size_t built = band.first * g_.stride_height;
    for (size_t first = band.first; first < band.last; first += strip_) {
        const size_t last = std::min(first + strip_, band.last);
        built = std::max(built, first * g_.stride_height);
        for (; built < (last - 1) * g_.stride_height + g_.span_height(); built++)
            build_row(frame.kernels, image, built, part, scale.inverse, ring);
        run_strip(frame, band, first, last, part, scale.factor, ring);
    }
}

// Output rows `first` to `last` of a part, from the tables of the ring.
void TableConvolution::run_strip(
    const Frame &frame, const Band &band, size_t first, size_t last, Columns part, float factor, const Ring &ring
) const {
    const size_t width = part.last - part.first;
    for (size_t y = first; y < last; y++) {
        offsets_of(y, ring.offsets + (y - first) * blocks_);
        for (size_t x = 0; x < width; x++) ring.window_magnitudes[(y - first) * width + x] = magnitude_of(y, x, ring);
    }
    for (size_t network = band.first_network; network < band.last_network; network++) {
        const uint8_t *const weights = (*weights_)[weights_->size() == 1 ? 0 : network];
        float *const out = frame.get(output, network, band.example) + part.first * g_.outputs;
        for (size_t channel = 0; channel < g_.outputs; channel += TILE) {
            const uint8_t *const tile = weights + channel / TILE * blocks_ * BLOCK * 32;
            const size_t outputs = std::min(TILE, g_.outputs - channel);
            const Finish finish = finishing_.of(network, channel);
            // Only a strip of one row can be wider than the space for totals.
            for (size_t from = 0; from < width; from += MAX_WINDOWS) {
                const Columns columns{from, std::min(from + MAX_WINDOWS, width)};
                look_up_strip(frame.kernels, tile, last - first, columns, ring);
                const int32_t *totals = ring.totals;
                for (size_t y = first; y < last; y++)
                    for (size_t x = columns.first; x < columns.last; x++, totals += TILE)
                        frame.kernels.finish_totals(
                            totals, ring.window_magnitudes[(y - first) * width + x], factor, finish, outputs,
                            out + (y * g_.out_width + x) * g_.outputs + channel
                        );
            }
        }
    }
}

// The totals of one tile of outputs for some columns, counted from the part's first, of `rows` rows of windows.
void TableConvolution::look_up_strip(
    const Kernels &kernels, const uint8_t *tile, size_t rows, Columns columns, const Ring &ring
) const {
    const LookUpChunks chunks(blocks_, rows * (columns.last - columns.first));
    for (size_t from = 0; from < blocks_; from += chunks.step) {
        LookUp what = chunks.at(kernels, tile, from, nullptr, ring.indices);
        int32_t *totals = ring.totals;
        for (size_t row = 0; row < rows; row++) {
            what.offsets = ring.offsets + row * blocks_ + from;
            for (size_t x = columns.first; x < columns.last; x += TOGETHER) {
                const size_t windows = std::min(TOGETHER, columns.last - x);
                const uint8_t *tables[TOGETHER];
                for (size_t n = 0; n < windows; n++) tables[n] = ring.tables + (x + n) * g_.stride_width * pixel_bytes_;
                kernels.look_up(what, tables, windows, totals);
                totals += windows * TILE;
            }
        }
    }
}

void DepthwiseConvolution::run(const Frame &frame, size_t task, std::byte *) const {
    const Band band(frame, output, g_.out_height, task);
    const float *image = frame.get(inputs[0], frame.network, band.example);
    const size_t one = g_.taps() * g_.channels;
    for (size_t network = band.first_network; network < band.last_network; network++) {
        const float *weights = weights_->data() + (weights_->size() == one ? 0 : network * one);
        float *const out = frame.get(output, network, band.example);
        for (size_t y = band.first; y < band.last; y++)
            for (size_t x = 0; x < g_.out_width; x++) {
                float *const to = out + (y * g_.out_width + x) * g_.channels;
                memset(to, 0, g_.channels * sizeof(float));
                for (size_t tap_y = 0; tap_y < g_.kernel_height; tap_y++)
                    for (size_t tap_x = 0; tap_x < g_.kernel_width; tap_x++) {
                        const float *pixel = g_.pixel(image, y, x, tap_y, tap_x);
                        const float *filter = weights + (tap_y * g_.kernel_width + tap_x) * g_.channels;
                        if (pixel) frame.kernels.multiply_add(pixel, filter, g_.channels, to);
                    }
                frame.kernels.finish(to, finishing_.of(network, 0), g_.channels, to);
            }
    }
}

}  // namespace bayesbinn::inference
