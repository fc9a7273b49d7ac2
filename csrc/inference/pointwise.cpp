#include "pointwise.hpp"

#include <math.h>

#include <algorithm>

namespace bayesbinn::inference {

void Pool::one(const Frame &frame, size_t network, size_t example) const {
    const float *const image = frame.get(inputs[0], network, example);
    float *to = frame.get(output, network, example);
    const Finish finish = finishing_.of(network, 0);
    for (size_t y = 0; y < rows_.start.size(); y++)
        for (size_t x = 0; x < columns_.start.size(); x++, to += channels_) {
            std::fill(to, to + channels_, average_ ? 0.0f : -INFINITY);
            for (size_t row = rows_.start[y]; row < rows_.stop[y]; row += rows_.step)
                for (size_t column = columns_.start[x]; column < columns_.stop[x]; column += columns_.step) {
                    const float *pixel = image + (row * columns_.inputs + column) * channels_;
                    (average_ ? frame.kernels.add : frame.kernels.take_larger)(pixel, channels_, to);
                }
            if (average_) frame.kernels.scale(1.0f / (rows_.size[y] * columns_.size[x]), channels_, to);
            frame.kernels.finish(to, finish, channels_, to);
        }
}

void Affine::one(const Frame &frame, size_t network, size_t example) const {
    const float *x = frame.get(inputs[0], network, example);
    float *y = frame.get(output, network, example);
    const Finish finish = finishing_.of(network, 0);
    if (inner_ == 1) {
        for (size_t i = 0; i < outer_; i++) frame.kernels.finish(x + i * channels_, finish, channels_, y + i * channels_);
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
