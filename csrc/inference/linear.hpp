// Linear layers: one step prepares the rows, the next multiplies them.
#pragma once

#include <algorithm>

#include "rows.hpp"

namespace bayesbinn::inference {

// One set of weights for all networks, or one for each; the network owns them.
using RowSets = const std::vector<std::unique_ptr<const Rows>> *;

// Rows that are prepared together before multiplying them: as many as one call multiplies, but not too many bytes.
inline size_t rows_of_strip(const Rows &rows) {
    constexpr size_t BYTES = 16 << 20;
    return std::clamp<size_t>(BYTES / rows.prepared_bytes, TOGETHER, rows.max_rows);
}

// A strip of prepared rows times all tiles of weights.
inline void multiply_strip(
    const Kernels &kernels, const Rows &rows, const RowBlock &block, const Finish &finish, size_t outputs,
    std::byte *scratch
) {
    const size_t tiles = (outputs + rows.tile - 1) / rows.tile;
    for (size_t tile = 0; tile < tiles; tile += MAX_TILES)
        rows.multiply(kernels, tile, std::min(tile + MAX_TILES, tiles), block, finish, outputs, scratch);
}

inline Quantization scale_of_row(const Kernels &kernels, const Rows &rows, const float *x, size_t count) {
    return rows.quantized ? Quantization::of(kernels.largest(x, count)) : Quantization{};
}

class PrepareRows : public Step {
   public:
    PrepareRows(size_t input, size_t output, RowSets sets, size_t rows, size_t count)
        : Step({input}, output), sets_(sets), rows_(rows), count_(count) {}

    size_t tasks(const Frame &frame) const override { return frame.batch; }

    void run(const Frame &frame, size_t example, std::byte *) const override {
        const Rows &rows = *sets_->front();
        const float *x = frame.get(inputs[0], frame.network, example);
        std::byte *to = frame.get<std::byte>(output, frame.network, example);
        for (size_t row = 0; row < rows_; row++, x += count_, to += rows.prepared_bytes) {
            rows.prepare(frame.kernels, x, scale_of_row(frame.kernels, rows, x, count_), to);
        }
    }

   private:
    RowSets sets_;
    size_t rows_, count_;
};

class MultiplyRows : public Step {
   public:
    MultiplyRows(size_t input, size_t output, RowSets sets, size_t rows, size_t outputs, Finishing finishing)
        : Step({input}, output), sets_(sets), rows_(rows), outputs_(outputs),
          tiles_((outputs + sets->front()->tile - 1) / sets->front()->tile), finishing_(std::move(finishing)) {}

    size_t tasks(const Frame &frame) const override { return row_tasks(frame) * tile_tasks(); }
    size_t scratch_bytes() const override { return sets_->front()->scratch_bytes; }

    void run(const Frame &frame, size_t task, std::byte *scratch) const override {
        const size_t network = frame.network, rows = frame.batch * rows_, tasks = row_tasks(frame);
        const Rows &set = *(*sets_)[sets_->size() == 1 ? 0 : network];
        // A few tiles of weights are used for all rows before the next are fetched: there are more weights than rows.
        const size_t first_tile = task / tasks * MAX_TILES, last_tile = std::min(first_tile + MAX_TILES, tiles_);
        const size_t per_task = round_up((rows + tasks - 1) / tasks, TOGETHER), first_row = task % tasks * per_task;
        RowBlock block;
        block.count = first_row < rows ? std::min(per_task, rows - first_row) : 0;
        for (size_t i = 0; i < block.count; i++) {
            const size_t example = (first_row + i) / rows_, within = (first_row + i) % rows_;
            block.rows[i] = frame.get<std::byte>(inputs[0], network, example) + within * set.prepared_bytes;
            block.y[i] = frame.get(output, network, example) + within * outputs_;
        }
        set.multiply(frame.kernels, first_tile, last_tile, block, finishing_.of(network, 0), outputs_, scratch);
    }

   private:
    // As few as possible with rows that stay in the cache, but enough for all threads.
    size_t row_tasks(const Frame &frame) const {
        const size_t rows = frame.batch * rows_, most = sets_->front()->max_rows;
        const size_t wanted = (frame.threads + tile_tasks() - 1) / tile_tasks();
        return std::max((rows + most - 1) / most, std::min(wanted, (rows + TOGETHER - 1) / TOGETHER));
    }
    size_t tile_tasks() const { return (tiles_ + MAX_TILES - 1) / MAX_TILES; }

    RowSets sets_;
    size_t rows_, outputs_, tiles_;
    Finishing finishing_;
};

// Both at once, for examples with so many rows that preparing all of them would take too much memory.
class StripsOfRows : public Step {
   public:
    StripsOfRows(
        size_t input, size_t output, RowSets sets, size_t rows, size_t count, size_t outputs, Finishing finishing
    )
        : Step({input}, output), sets_(sets), rows_(rows), count_(count), outputs_(outputs),
          strip_(rows_of_strip(*sets_->front())), finishing_(std::move(finishing)) {}

    size_t tasks(const Frame &frame) const override { return frame.batch * strips(); }
    size_t scratch_bytes() const override {
        return strip_ * sets_->front()->prepared_bytes + sets_->front()->scratch_bytes;
    }

    void run(const Frame &frame, size_t task, std::byte *scratch) const override {
        const Rows &rows = *(*sets_)[sets_->size() == 1 ? 0 : frame.network];
        const size_t example = task / strips(), first = task % strips() * strip_;
        const float *x = frame.get(inputs[0], frame.network, example) + first * count_;
        float *const y = frame.get(output, frame.network, example) + first * outputs_;
        RowBlock block;
        block.count = std::min(strip_, rows_ - first);
        for (size_t n = 0; n < block.count; n++, x += count_, scratch += rows.prepared_bytes) {
            rows.prepare(frame.kernels, x, scale_of_row(frame.kernels, rows, x, count_), scratch);
            block.rows[n] = scratch;
            block.y[n] = y + n * outputs_;
        }
        multiply_strip(frame.kernels, rows, block, finishing_.of(frame.network, 0), outputs_, scratch);
    }

   private:
    size_t strips() const { return (rows_ + strip_ - 1) / strip_; }

    RowSets sets_;
    size_t rows_, count_, outputs_, strip_;
    Finishing finishing_;
};

}  // namespace bayesbinn::inference
