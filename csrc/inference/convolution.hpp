// Convolutions over images stored as [height][width][channels].
#pragma once

#include <algorithm>

#include "linear.hpp"

namespace bayesbinn::inference {

struct Geometry {
    size_t channels, height, width;         // of the input
    size_t outputs, out_height, out_width;  // of the output
    size_t kernel_height, kernel_width, stride_height, stride_width, top, left, dilation_height, dilation_width;
    size_t groups;

    size_t group_channels() const { return channels / groups; }
    size_t group_outputs() const { return outputs / groups; }
    size_t taps() const { return kernel_height * kernel_width; }
    size_t windows() const { return out_height * out_width; }
    // Rows and columns of the padded image that a window spans.
    size_t span_height() const { return dilation_height * (kernel_height - 1) + 1; }
    size_t span_width() const { return dilation_width * (kernel_width - 1) + 1; }
    // Columns of the padded image that a number of neighboring windows span.
    size_t columns_of(size_t outputs_wide) const { return (outputs_wide - 1) * stride_width + span_width(); }

    // The stored rows are [channel][y][x]; windows are read as [y][x][channel], `stride` positions for each tap.
    Order window_order(size_t stride) const {
        Order order(taps() * stride, -1);
        for (size_t tap = 0; tap < taps(); tap++)
            for (size_t c = 0; c < group_channels(); c++) order[tap * stride + c] = (int32_t)(c * taps() + tap);
        return order;
    }

    // The pixel under a tap of an output's window; null in the padding.
    const float *pixel(const float *image, size_t y, size_t x, size_t tap_y, size_t tap_x) const {
        const size_t row = y * stride_height + tap_y * dilation_height,
                     column = x * stride_width + tap_x * dilation_width;
        if (row < top || row - top >= height || column < left || column - left >= width) return nullptr;
        return image + ((row - top) * width + column - left) * channels;
    }
};

// An image is cut into bands (of rows, or of windows) only if there are fewer images than threads.
inline size_t bands_per_image(const Frame &frame, size_t images, size_t parts) {
    return std::min(parts, std::max<size_t>(1, (frame.threads + images - 1) / images));
}

// Bands of all images as tasks. If the outputs of all networks are kept, a band serves all of them: a shared
// input is prepared once.
struct Band {
    size_t example, first, last, first_network, last_network;

    // `parts`: the rows, or windows, of an image.
    Band(const Frame &frame, size_t output, size_t parts, size_t task) {
        const size_t bands = bands_per_image(frame, frame.batch, parts), band = task % bands;
        example = task / bands;
        first = parts * band / bands;
        last = parts * (band + 1) / bands;
        const bool all = frame.values[output].kept > 1;
        first_network = all ? 0 : frame.network;
        last_network = all ? frame.networks : frame.network + 1;
    }

    static size_t count(const Frame &frame, size_t parts) {
        return frame.batch * bands_per_image(frame, frame.batch, parts);
    }
};

// Any convolution: a strip of windows is gathered and prepared, then multiplied.
class WindowConvolution : public Step {
   public:
    WindowConvolution(size_t input, size_t output, Geometry geometry, RowSets sets, Finishing finishing)
        : Step({input}, output), g_(geometry), sets_(sets), finishing_(std::move(finishing)),
          strip_(rows_of_strip(set(0, 0))) {}

    size_t tasks(const Frame &frame) const override { return Band::count(frame, g_.windows()); }

    size_t scratch_bytes() const override {
        return window_bytes() + strip_ * set(0, 0).prepared_bytes + set(0, 0).scratch_bytes;
    }

    void run(const Frame &frame, size_t task, std::byte *scratch) const override {
        const Band band(frame, output, g_.windows(), task);
        const float *image = frame.get(inputs[0], frame.network, band.example);
        Quantization scale{};
        if (set(0, 0).quantized)
            scale = Quantization::of(frame.kernels.largest(image, g_.height * g_.width * g_.channels));
        for (size_t first = band.first; first < band.last; first += strip_) {
            const size_t last = std::min(first + strip_, band.last);
            for (size_t group = 0; group < g_.groups; group++) {
                prepare(frame.kernels, image, first, last, group, scale, scratch);
                for (size_t network = band.first_network; network < band.last_network; network++)
                    multiply(frame, network, band.example, first, last, group, scratch + window_bytes());
            }
        }
    }

   private:
    size_t window_bytes() const { return round_up(g_.taps() * g_.group_channels() * sizeof(float), LINE); }

    // All groups of a network are stored one after the other.
    const Rows &set(size_t network, size_t group) const {
        return *(*sets_)[(sets_->size() == g_.groups ? 0 : network * g_.groups) + group];
    }

    // Windows `first` to `last`, counted row by row; `scratch` has space for one window, then for the prepared strip.
    void prepare(
        const Kernels &kernels, const float *image, size_t first, size_t last, size_t group, Quantization scale,
        std::byte *scratch
    ) const {
        const Rows &rows = set(0, group);
        float *const window = reinterpret_cast<float *>(scratch);
        std::byte *to = scratch + window_bytes();
        const size_t channels = g_.group_channels();
        // If all channels are used, neighboring taps are contiguous in the image.
        const bool stretch = g_.groups == 1 && g_.dilation_width == 1;
        const size_t parts = stretch ? 1 : g_.kernel_width, wide = stretch ? g_.kernel_width : 1;
        for (size_t n = first; n < last; n++, to += rows.prepared_bytes) {
            const size_t y = n / g_.out_width, x = n % g_.out_width;
            float *at = window;
            for (size_t tap_y = 0; tap_y < g_.kernel_height; tap_y++)
                for (size_t part = 0; part < parts; part++, at += wide * channels)
                    copy_taps(image + group * channels, y, x, tap_y, part, wide, at);
            rows.prepare(kernels, window, scale, to);
        }
    }

    // `count` taps from `tap_x` on that are neighbors in the image; zeros where they are in the padding.
    void copy_taps(const float *image, size_t y, size_t x, size_t tap_y, size_t tap_x, size_t count, float *to) const {
        const size_t channels = g_.group_channels();
        const size_t row = y * g_.stride_height + tap_y * g_.dilation_height;
        const size_t column = x * g_.stride_width + tap_x * g_.dilation_width;
        const size_t first = std::min(count, g_.left > column ? g_.left - column : 0);
        const size_t end = g_.left + g_.width > column ? std::min(count, g_.left + g_.width - column) : 0;
        if (row < g_.top || row - g_.top >= g_.height || first >= end) {
            std::fill_n(to, count * channels, 0.0f);
            return;
        }
        const float *const from = image + ((row - g_.top) * g_.width + column + first - g_.left) * g_.channels;
        std::fill_n(to, first * channels, 0.0f);
        std::copy_n(from, (end - first) * channels, to + first * channels);
        std::fill_n(to + end * channels, (count - end) * channels, 0.0f);
    }

    void multiply(
        const Frame &frame, size_t network, size_t example, size_t first, size_t last, size_t group, std::byte *prepared
    ) const {
        const Rows &rows = set(network, group);
        const size_t channel = group * g_.group_outputs();
        float *const out = frame.get(output, network, example) + first * g_.outputs + channel;
        RowBlock block;
        block.count = last - first;
        for (size_t n = 0; n < block.count; n++) {
            block.rows[n] = prepared + n * rows.prepared_bytes;
            block.y[n] = out + n * g_.outputs;
        }
        std::byte *const scratch = prepared + strip_ * rows.prepared_bytes;
        multiply_strip(frame.kernels, rows, block, finishing_.of(network, channel), g_.group_outputs(), scratch);
    }

    Geometry g_;
    RowSets sets_;
    Finishing finishing_;
    size_t strip_;  // windows that are prepared together
};

// Packed weights, one set for all networks or one for each; the network owns them.
using PackedSets = const std::vector<const uint8_t *> *;

// Lookup convolution that does not copy windows. The tables of a pixel are built once and serve all
// windows that contain it; a window is a few runs of blocks in a ring of rows of tables. Images that are
// too wide for a ring are cut into parts, side by side.
class TableConvolution : public Step {
   public:
    // The tables of a tap, or of a whole row of neighboring taps, must be whole blocks, and the ring must be small.
    static bool suits(const Geometry &geometry);

    TableConvolution(size_t input, size_t output, Geometry geometry, PackedSets weights, Finishing finishing);

    // Positions of each tap in the order of the weights: channels, rounded up to whole groups.
    static size_t tap_positions(const Geometry &geometry) { return round_up(geometry.channels, GROUP); }

    size_t tasks(const Frame &frame) const override { return Band::count(frame, g_.out_height) * parts(); }
    size_t scratch_bytes() const override;
    void run(const Frame &frame, size_t task, std::byte *scratch) const override;

   private:
    struct Ring;
    // Of the output.
    struct Columns {
        size_t first, last;
    };
    size_t parts() const { return (g_.out_width + wide_ - 1) / wide_; }
    void build_row(
        const Kernels &kernels, const float *image, size_t row, Columns part, float inverse, const Ring &ring
    ) const;
    void offsets_of(size_t y, uint32_t *offsets) const;
    int32_t magnitude_of(size_t y, size_t x, const Ring &ring) const;
    void run_strip(
        const Frame &frame, const Band &band, size_t first, size_t last, Columns part, float factor, const Ring &ring
    ) const;
    void look_up_strip(
        const Kernels &kernels, const uint8_t *tile, size_t rows, Columns columns, const Ring &ring
    ) const;

    Geometry g_;
    PackedSets weights_;
    Finishing finishing_;
    size_t pixel_bytes_, blocks_;
    size_t wide_, columns_;  // of a part: columns of the output, and of the padded image
    size_t strip_, ring_rows_;
};

// One channel, one filter: groups = channels = outputs.
class DepthwiseConvolution : public Step {
   public:
    // weights: [networks or 1][tap][channels]
    DepthwiseConvolution(size_t input, size_t output, Geometry geometry, SharedFloats weights, Finishing finishing)
        : Step({input}, output), g_(geometry), weights_(weights), finishing_(std::move(finishing)) {}

    size_t tasks(const Frame &frame) const override { return Band::count(frame, g_.out_height); }
    void run(const Frame &frame, size_t task, std::byte *scratch) const override;

   private:
    Geometry g_;
    SharedFloats weights_;
    Finishing finishing_;
};

}  // namespace bayesbinn::inference
