#include "pointwise.hpp"

#include <math.h>

#include <algorithm>

namespace bayesbinn::inference {

PoolAxis::Window PoolAxis::window(size_t index) const {
    if (!kernel) {
        const uint64_t length = inputs;  // products may exceed 32 bits
        const size_t start = (size_t)(index * length / count);
        const size_t stop = (size_t)(((index + 1) * length + count - 1) / count);
        return {start, stop, (float)(stop - start)};
    }
    // Counted from the first pixel of the padding; pixel 0 of the image is at `padding`.
    const size_t begin = index * stride, end = begin + step * (kernel - 1) + 1, image_end = padding + inputs;
    // The first tap inside the image.
    const size_t first = begin >= padding ? begin : begin + (padding - begin + step - 1) / step * step;
    const size_t inside_begin = std::max(begin, padding), inside_end = std::min(end, image_end);
    const size_t inside = inside_end > inside_begin ? inside_end - inside_begin : 1;
    const float size = (float)(counts_padding ? std::min(end, image_end + padding) - begin : inside);
    if (first >= image_end || first >= inside_end) return {0, 0, size};  // a window outside the image is empty
    return {first - padding, inside_end - padding, size};
}

void Pool::one(const Frame &frame, size_t network, size_t example) const {
    const float *const image = frame.get(inputs[0], network, example);
    float *to = frame.get(output, network, example);
    const Finish finish = finishing_.of(network, 0);
    for (size_t y = 0; y < rows_.count; y++) {
        const PoolAxis::Window down = rows_.window(y);
        for (size_t x = 0; x < columns_.count; x++, to += channels_) {
            const PoolAxis::Window across = columns_.window(x);
            std::fill(to, to + channels_, average_ ? 0.0f : -INFINITY);
            for (size_t row = down.start; row < down.stop; row += rows_.step)
                for (size_t column = across.start; column < across.stop; column += columns_.step) {
                    const float *pixel = image + (row * columns_.inputs + column) * channels_;
                    (average_ ? frame.kernels.add : frame.kernels.take_larger)(pixel, channels_, to);
                }
            if (average_) frame.kernels.scale(1.0f / (down.size * across.size), channels_, to);
            frame.kernels.finish(to, finish, channels_, to);
        }
    }
}

void Affine::one(const Frame &frame, size_t network, size_t example) const {
    const float *x = frame.get(inputs[0], network, example);
    float *y = frame.get(output, network, example);
    const Finish finish = finishing_.of(network, 0);
    if (inner_ == 1) {
        for (size_t i = 0; i < outer_; i++)
            frame.kernels.finish(x + i * channels_, finish, channels_, y + i * channels_);
        return;
    }
    for (size_t i = 0; i < outer_ * channels_; i++, x += inner_, y += inner_) {
        const size_t c = i % channels_;
        for (size_t j = 0; j < inner_; j++) {
            const float value = finish.scale ? x[j] * finish.scale[c] + finish.shift[c] : x[j];
            y[j] = value < finish.low ? finish.low : value > finish.high ? finish.high : value;
        }
    }
}

void Elementwise::one(const Frame &frame, size_t network, size_t example) const {
    const float *x = frame.get(inputs[0], network, example);
    float *y = frame.get(output, network, example);
    for (size_t i = 0; i < count_; i++) y[i] = function_(x[i]);
}

void Softmax::one(const Frame &frame, size_t network, size_t example) const {
    for (size_t i = 0; i < outer_ * inner_; i++) {
        const size_t start = i / inner_ * count_ * inner_ + i % inner_;
        const float *x = frame.get(inputs[0], network, example) + start;
        float *y = frame.get(output, network, example) + start;
        float largest = x[0], sum = 0.0f;
        for (size_t j = 1; j < count_; j++) largest = std::max(largest, x[j * inner_]);
        for (size_t j = 0; j < count_; j++) sum += y[j * inner_] = expf(x[j * inner_] - largest);
        for (size_t j = 0; j < count_; j++) y[j * inner_] /= sum;
    }
}

void Add::one(const Frame &frame, size_t network, size_t example) const {
    float *y = frame.get(output, network, example);
    memcpy(y, frame.get(inputs[0], network, example), count_ * sizeof(float));
    frame.kernels.add(frame.get(inputs[1], network, example), count_, y);
    frame.kernels.finish(y, limits_.of(0, 0), count_, y);
}

void Concatenate::one(const Frame &frame, size_t network, size_t example) const {
    float *y = frame.get(output, network, example);
    for (size_t part = 0; part < outer_; part++)
        for (size_t i = 0; i < inputs.size(); i++) {
            const float *x = frame.get(inputs[i], network, example) + part * lengths_[i];
            memcpy(y, x, lengths_[i] * sizeof(float));
            y += lengths_[i];
        }
}

void Transpose::one(const Frame &frame, size_t network, size_t example) const {
    frame.kernels.transpose(
        frame.get(inputs[0], network, example), rows_, columns_, frame.get(output, network, example)
    );
}

}  // namespace bayesbinn::inference
