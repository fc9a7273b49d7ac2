// Linear layers: one step prepares the rows, the next multiplies them.
#pragma once

#include <algorithm>
#include <memory>

#include "rows.hpp"

namespace bayesbinn::inference {

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
          tiles_((outputs + Rows::OUTPUTS - 1) / Rows::OUTPUTS), finishing_(std::move(finishing)) {}

    size_t tasks(const Frame &frame) const override { return row_tasks(frame) * tile_tasks(); }
    size_t scratch_bytes() const override { return Rows::SCRATCH; }

    void run(const Frame &frame, size_t task, std::byte *scratch) const override {
        const size_t network = frame.network, rows = frame.batch * rows_, tasks = row_tasks(frame);
        const Rows &set = (*sets_)[sets_->size() == 1 ? 0 : network];
        // Some tiles of weights serve all rows before the next are fetched: weights are the larger part.
        const size_t first_tile = task / tasks * MOST_TILES, last_tile = std::min(first_tile + MOST_TILES, tiles_);
        const size_t per_task = round_up((rows + tasks - 1) / tasks, TOGETHER), first_row = task % tasks * per_task;
        RowBlock block;
        block.count = first_row < rows ? std::min(per_task, rows - first_row) : 0;
        for (size_t i = 0; i < block.count; i++) {
            const size_t example = (first_row + i) / rows_, within = (first_row + i) % rows_;
            block.rows[i] = frame.get<std::byte>(inputs[0], network, example) + within * set.prepared_bytes();
            block.y[i] = frame.get(output, network, example) + within * outputs_;
        }
        set.multiply(frame.kernels, first_tile, last_tile, block, finishing_.of(network, 0), outputs_, scratch);
    }

   private:
    // As few as keep their rows near, but enough for all threads.
    size_t row_tasks(const Frame &frame) const {
        const size_t rows = frame.batch * rows_, most = sets_->front().most_rows();
        const size_t wanted = (frame.threads + tile_tasks() - 1) / tile_tasks();
        return std::max((rows + most - 1) / most, std::min(wanted, (rows + TOGETHER - 1) / TOGETHER));
    }
    size_t tile_tasks() const { return (tiles_ + MOST_TILES - 1) / MOST_TILES; }

    RowSets<Rows> sets_;
    size_t rows_, outputs_, tiles_;
    Finishing finishing_;
};

}  // namespace bayesbinn::inference
