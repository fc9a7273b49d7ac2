// The three ways to multiply a row of activations by a matrix of weights, behind one interface:
// a row is prepared once, and then every tile of outputs is computed from the prepared row.
#pragma once

#include "chunks.hpp"
#include "step.hpp"
#include "weights.hpp"

namespace bayesbinn::inference {

// The positions of one row, followed by padding.
inline Order padded(Order order, size_t unit) {
    order.resize(round_up(order.size(), unit), -1);
    return order;
}

// How much one call multiplies: a few tiles of weights with a few rows.
constexpr size_t MAX_ROWS = 32;
constexpr size_t MAX_TILES = 4;
static_assert(MAX_ROWS % TOGETHER == 0, "rows are multiplied in pairs");

// Prepared rows, and where their outputs go.
struct RowBlock {
    const std::byte *rows[MAX_ROWS];
    float *y[MAX_ROWS];
    size_t count;
};

// Bits and lookup tables: 8-bit activations.
class TableRows {
   public:
    static constexpr size_t OUTPUTS = TILE;
    static constexpr bool QUANTIZED = true;
    static constexpr size_t TOTALS = MAX_TILES * MAX_ROWS * TILE;
    static constexpr size_t SCRATCH = TOTALS * sizeof(int32_t) + LookUpChunks::BYTES;

    TableRows(Arena &arena, const StoredWeights &stored, const Order &order)
        : count_(order.size()), blocks_(round_up(count_, GROUP * BLOCK) / (GROUP * BLOCK)),
          weights_(weights_for_tables(arena, stored, padded(order, GROUP * BLOCK))) {
        for (size_t b = 0; b < blocks_; b++) offsets_.push_back((uint32_t)(b * BLOCK * TABLE));
    }

    size_t prepared_bytes() const { return LINE + blocks_ * BLOCK * TABLE; }

    void prepare(const Kernels &kernels, const float *x, Quantization scale, std::byte *to) const {
        Head &head = *reinterpret_cast<Head *>(to);
        uint8_t *const tables = reinterpret_cast<uint8_t *>(to) + LINE;
        head = {scale.factor, 0};
        const size_t used = scale.inverse == 0.0f ? 0 : tables_bytes(count_);
        if (used) head.magnitude = kernels.build_tables(x, count_, scale.inverse, tables);
        memset(tables + used, 0, blocks_ * BLOCK * TABLE - used);
    }

    size_t max_rows() const { return MAX_ROWS; }  // a chunk of their tables stays in the cache

    void multiply(
        const Kernels &kernels, size_t first_tile, size_t last_tile, const RowBlock &block, const Finish &finish,
        size_t outputs, std::byte *scratch
    ) const {
        int32_t *const totals = reinterpret_cast<int32_t *>(scratch);
        uint8_t *const indices = reinterpret_cast<uint8_t *>(totals + TOTALS);
        const auto totals_of = [&](size_t tile, size_t row) {
            return totals + ((tile - first_tile) * MAX_ROWS + row) * TILE;
        };
        const LookUpChunks chunks(blocks_, block.count);
        for (size_t from = 0; from < blocks_; from += chunks.step)
            for (size_t tile = first_tile; tile < last_tile; tile++) {
                const uint8_t *const weights = weights_ + tile * blocks_ * BLOCK * 32;
                const LookUp what = chunks.at(kernels, weights, from, offsets_.data() + from, indices);
                for (size_t row = 0; row < block.count; row += TOGETHER) {
                    const size_t windows = std::min(TOGETHER, block.count - row);
                    const uint8_t *tables[TOGETHER];
                    for (size_t n = 0; n < windows; n++)
                        tables[n] = reinterpret_cast<const uint8_t *>(block.rows[row + n]) + LINE;
                    kernels.look_up(what, tables, windows, totals_of(tile, row));
                }
            }
        for (size_t tile = first_tile; tile < last_tile; tile++)
            for (size_t row = 0; row < block.count; row++) {
                const Head &head = *reinterpret_cast<const Head *>(block.rows[row]);
                kernels.finish_totals(
                    totals_of(tile, row), head.magnitude, head.factor, finish.at(tile * TILE),
                    std::min(TILE, outputs - tile * TILE), block.y[row] + tile * TILE
                );
            }
    }

   private:
    struct Head {
        float factor;
        int32_t magnitude;  // Σ|q|
    };

    size_t count_, blocks_;
    const uint8_t *weights_;  // of the network's arena
    std::vector<uint32_t> offsets_;
};

// Bits and pairs of float activations: exact.
class PairRows {
   public:
    static constexpr size_t OUTPUTS = PAIR_TILE;
    static constexpr bool QUANTIZED = false;
    static constexpr size_t SUMS = MAX_TILES * MAX_ROWS * PAIR_TILE;
    static constexpr size_t SCRATCH = SUMS * sizeof(float) + PairChunks::BYTES;

    PairRows(Arena &arena, const StoredWeights &stored, const Order &order)
        : count_(order.size()), words_((count_ + WORD - 1) / WORD),
          weights_(weights_for_pairs(arena, stored, padded(order, WORD))) {}

    size_t prepared_bytes() const { return words_ * WORD * 2 * sizeof(float); }

    void prepare(const Kernels &kernels, const float *x, Quantization, std::byte *to) const {
        float *const pairs = reinterpret_cast<float *>(to);
        const size_t even = count_ / 2 * 2;
        kernels.build_pairs(x, even, pairs);
        memset(pairs + 2 * even, 0, (words_ * WORD - even) * 2 * sizeof(float));
        if (count_ > even) {
            const float last[2] = {x[even], 0.0f};
            kernels.build_pairs(last, 2, pairs + 2 * even);
        }
    }

    size_t max_rows() const { return MAX_ROWS; }

    void multiply(
        const Kernels &kernels, size_t first_tile, size_t last_tile, const RowBlock &block, const Finish &finish,
        size_t outputs, std::byte *scratch
    ) const {
        float *const sums = reinterpret_cast<float *>(scratch);
        uint32_t *const indices = reinterpret_cast<uint32_t *>(sums + SUMS);
        const auto sums_of = [&](size_t tile, size_t row) {
            return sums + ((tile - first_tile) * MAX_ROWS + row) * PAIR_TILE;
        };
        const PairChunks chunks(words_, block.count);
        for (size_t from = 0; from < words_; from += chunks.step)
            for (size_t tile = first_tile; tile < last_tile; tile++) {
                const PairSum what = chunks.at(kernels, weights_ + tile * words_ * PAIR_TILE, from, indices);
                for (size_t row = 0; row < block.count; row += TOGETHER) {
                    const size_t windows = std::min(TOGETHER, block.count - row);
                    const float *pairs[TOGETHER];
                    for (size_t n = 0; n < windows; n++)
                        pairs[n] = reinterpret_cast<const float *>(block.rows[row + n]) + from * WORD * 2;
                    kernels.add_pairs(what, pairs, windows, sums_of(tile, row));
                }
            }
        for (size_t tile = first_tile; tile < last_tile; tile++)
            for (size_t row = 0; row < block.count; row++)
                kernels.finish(
                    sums_of(tile, row), finish.at(tile * PAIR_TILE), std::min(PAIR_TILE, outputs - tile * PAIR_TILE),
                    block.y[row] + tile * PAIR_TILE
                );
    }

   private:
    size_t count_, words_;
    const uint32_t *weights_;  // of the network's arena
};

// Real weights.
class RealRows {
   public:
    static constexpr size_t OUTPUTS = PAIR_TILE;
    static constexpr bool QUANTIZED = false;
    static constexpr size_t SCRATCH = 0;

    RealRows(Arena &arena, const StoredWeights &stored, const Order &order)
        : count_(order.size()), weights_(weights_for_multiplying(arena, stored, order)) {}

    size_t prepared_bytes() const { return round_up(count_ * sizeof(float), LINE); }

    void prepare(const Kernels &, const float *x, Quantization, std::byte *to) const {
        memcpy(to, x, count_ * sizeof(float));
    }

    // Rows that stay in the second-level cache while all tiles of weights are used.
    size_t max_rows() const {
        constexpr size_t BUDGET = 128 << 10;
        return std::clamp<size_t>(BUDGET / prepared_bytes() / TOGETHER * TOGETHER, TOGETHER, MAX_ROWS);
    }

    void multiply(
        const Kernels &kernels, size_t first_tile, size_t last_tile, const RowBlock &block, const Finish &finish,
        size_t outputs, std::byte *
    ) const {
        for (size_t tile = first_tile; tile < last_tile; tile++)
            for (size_t row = 0; row < block.count; row += TOGETHER) {
                const size_t windows = std::min(TOGETHER, block.count - row), channel = tile * PAIR_TILE;
                float sums[TOGETHER * PAIR_TILE];
                const float *x[TOGETHER];
                for (size_t n = 0; n < windows; n++) x[n] = reinterpret_cast<const float *>(block.rows[row + n]);
                kernels.multiply(weights_ + tile * count_ * PAIR_TILE, count_, x, windows, sums);
                for (size_t n = 0; n < windows; n++)
                    kernels.finish(
                        sums + PAIR_TILE * n, finish.at(channel), std::min(PAIR_TILE, outputs - channel),
                        block.y[row + n] + channel
                    );
            }
    }

   private:
    size_t count_;
    const float *weights_;  // of the network's arena
};

}  // namespace bayesbinn::inference
