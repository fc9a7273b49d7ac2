// Linear layers: one step prepares the rows, the next multiplies them.
#pragma once

#include <algorithm>
#include <memory>

#include "rows.hpp"

namespace bayesbinn::inference {

// Prepared rows that stay in the second-level cache while all tiles of weights pass by.
constexpr size_t ROW_BUDGET = 128 << 10;
constexpr size_t TILES_PER_TASK = 4;

// One set of weights for all networks, or one for each.
template <class Rows>
using RowSets = std::shared_ptr<const std::vector<Rows>>;

template <class Rows>
class PrepareRows : public Step {
   public:
    PrepareRows(size_t input, size_t output, RowSets<Rows> sets, size_t rows, size_t count)
        : Step({input}, output), sets_(std::move(sets)), rows_(rows), count_(count) {}

    size_t tasks(const Frame &frame) const override { return frame.batch; }

    void run(const Frame &frame, size_t example, std::byte *) const override {
        const Rows &rows = sets_->front();
        const float *x = frame.get(inputs[0], frame.network, example);
        std::byte *to = frame.get<std::byte>(output, frame.network, example);
        for (size_t row = 0; row < rows_; row++, x += count_, to += rows.prepared_bytes()) {
            const Quantisation scale =
                Rows::QUANTISED ? Quantisation::of(frame.kernels.largest(x, count_)) : Quantisation{};
            rows.prepare(frame.kernels, x, scale, to);
        }
    }

   private:
    RowSets<Rows> sets_;
    size_t rows_, count_;
};

template <class Rows>
class MultiplyRows : public Step {
   public:
    MultiplyRows(
        size_t input, size_t output, RowSets<Rows> sets, size_t rows, size_t outputs, Finishing finishing
    )
        : Step({input}, output), sets_(std::move(sets)), rows_(rows), outputs_(outputs),
          tiles_((outputs + Rows::OUTPUTS - 1) / Rows::OUTPUTS), finishing_(std::move(finishing)) {
        const size_t fitting = ROW_BUDGET / sets_->front().prepared_bytes();
        rows_per_task_ = fitting < TOGETHER ? TOGETHER : fitting / TOGETHER * TOGETHER;
    }

    size_t tasks(const Frame &frame) const override { return row_tasks(frame) * tile_tasks(); }

    void run(const Frame &frame, size_t task, std::byte *) const override {
        const size_t network = frame.network;
        // Some tiles of weights serve all rows before the next are fetched: weights are the larger part.
        const size_t first_row = task % row_tasks(frame) * rows_per_task_;
        const size_t last_row = std::min(first_row + rows_per_task_, frame.batch * rows_);
        const size_t first_tile = task / row_tasks(frame) * TILES_PER_TASK;
        const size_t last_tile = std::min(first_tile + TILES_PER_TASK, tiles_);
        const Rows &set = (*sets_)[sets_->size() == 1 ? 0 : network];
        for (size_t tile = first_tile; tile < last_tile; tile++) {
            const size_t channel = tile * Rows::OUTPUTS;
            const Finish finish = finishing_.of(network, channel);
            const size_t outputs = std::min(Rows::OUTPUTS, outputs_ - channel);
            for (size_t row = first_row; row < last_row; row += TOGETHER) {
                const size_t windows = std::min(TOGETHER, last_row - row);
                const std::byte *prepared[TOGETHER];
                float *y[TOGETHER];
                for (size_t n = 0; n < windows; n++) {
                    const size_t example = (row + n) / rows_, within = (row + n) % rows_;
                    prepared[n] =
                        frame.get<std::byte>(inputs[0], network, example) + within * set.prepared_bytes();
                    y[n] = frame.get(output, network, example) + within * outputs_ + channel;
                }
                set.tile(frame.kernels, tile, prepared, windows, finish, outputs, y);
            }
        }
    }

   private:
    size_t row_tasks(const Frame &frame) const {
        return (frame.batch * rows_ + rows_per_task_ - 1) / rows_per_task_;
    }
    size_t tile_tasks() const { return (tiles_ + TILES_PER_TASK - 1) / TILES_PER_TASK; }

    RowSets<Rows> sets_;
    size_t rows_, outputs_, tiles_, rows_per_task_;
    Finishing finishing_;
};

}  // namespace bayesbinn::inference
