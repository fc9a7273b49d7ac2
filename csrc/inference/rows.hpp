// The three ways to multiply a row of activations by a matrix of weights, behind one interface:
// a row is prepared once, and then every tile of outputs is computed from the prepared row.
#pragma once

#include <memory>

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

// A matrix of weights, and how it is multiplied by rows.
class Rows {
   public:
    virtual ~Rows() = default;

    const size_t tile;            // outputs that are computed together
    const bool quantized;         // whether activations are rounded to 8 bits
    const size_t prepared_bytes;  // of a row
    const size_t max_rows;        // that one call multiplies: prepared, they stay in the cache
    const size_t scratch_bytes;   // of `multiply`

    virtual void prepare(const Kernels &kernels, const float *x, Quantization scale, std::byte *to) const = 0;

    // Tiles `first_tile` to `last_tile`, at most MAX_TILES, times the rows of a block, at most `max_rows`.
    virtual void multiply(
        const Kernels &kernels, size_t first_tile, size_t last_tile, const RowBlock &block, const Finish &finish,
        size_t outputs, std::byte *scratch
    ) const = 0;

   protected:
    Rows(size_t tile, bool quantized, size_t prepared_bytes, size_t max_rows, size_t scratch_bytes)
        : tile(tile), quantized(quantized), prepared_bytes(prepared_bytes), max_rows(max_rows),
          scratch_bytes(scratch_bytes) {}
};

// Bits and lookup tables: 8-bit activations.
class TableRows : public Rows {
   public:
    TableRows(Arena &arena, const StoredWeights &stored, const Order &order)
        : Rows(TILE, true, LINE + blocks_of(order) * BLOCK * TABLE, MAX_ROWS, SCRATCH), count_(order.size()),
          blocks_(blocks_of(order)), weights_(weights_for_tables(arena, stored, padded(order, GROUP * BLOCK))) {
        for (size_t b = 0; b < blocks_; b++) offsets_.push_back((uint32_t)(b * BLOCK * TABLE));
    }

    void prepare(const Kernels &kernels, const float *x, Quantization scale, std::byte *to) const override {
        Head &head = *reinterpret_cast<Head *>(to);
        uint8_t *const tables = reinterpret_cast<uint8_t *>(to) + LINE;
        head = {scale.factor, 0};
        const size_t used = scale.inverse == 0.0f ? 0 : tables_bytes(count_);
        if (used) head.magnitude = kernels.build_tables(x, count_, scale.inverse, tables);
        memset(tables + used, 0, blocks_ * BLOCK * TABLE - used);
    }

    void multiply(
        const Kernels &kernels, size_t first_tile, size_t last_tile, const RowBlock &block, const Finish &finish,
        size_t outputs, std::byte *scratch
    ) const override {
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
    static constexpr size_t TOTALS = MAX_TILES * MAX_ROWS * TILE;
    static constexpr size_t SCRATCH = TOTALS * sizeof(int32_t) + LookUpChunks::BYTES;

    static size_t blocks_of(const Order &order) { return round_up(order.size(), GROUP * BLOCK) / (GROUP * BLOCK); }

    struct Head {
        float factor;
        int32_t magnitude;  // Σ|q|
    };

    size_t count_, blocks_;
    const uint8_t *weights_;  // of the network's arena
    std::vector<uint32_t> offsets_;
};

// Bits and pairs of float activations: exact.
class PairRows : public Rows {
   public:
    PairRows(Arena &arena, const StoredWeights &stored, const Order &order)
        : Rows(PAIR_TILE, false, words_of(order) * WORD * 2 * sizeof(float), MAX_ROWS, SCRATCH), count_(order.size()),
          words_(words_of(order)), weights_(weights_for_pairs(arena, stored, padded(order, WORD))) {}

    void prepare(const Kernels &kernels, const float *x, Quantization, std::byte *to) const override {
        float *const pairs = reinterpret_cast<float *>(to);
        const size_t even = count_ / 2 * 2;
        kernels.build_pairs(x, even, pairs);
        memset(pairs + 2 * even, 0, (words_ * WORD - even) * 2 * sizeof(float));
        if (count_ > even) {
            const float last[2] = {x[even], 0.0f};
            kernels.build_pairs(last, 2, pairs + 2 * even);
        }
    }

    void multiply(
        const Kernels &kernels, size_t first_tile, size_t last_tile, const RowBlock &block, const Finish &finish,
        size_t outputs, std::byte *scratch
    ) const override {
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
    static constexpr size_t SUMS = MAX_TILES * MAX_ROWS * PAIR_TILE;
    static constexpr size_t SCRATCH = SUMS * sizeof(float) + PairChunks::BYTES;

    static size_t words_of(const Order &order) { return (order.size() + WORD - 1) / WORD; }

    size_t count_, words_;
    const uint32_t *weights_;  // of the network's arena
};

// Real weights.
class RealRows : public Rows {
   public:
    RealRows(Arena &arena, const StoredWeights &stored, const Order &order)
        : Rows(PAIR_TILE, false, bytes_of(order), rows_for_cache(bytes_of(order)), 0), count_(order.size()),
          weights_(weights_for_multiplying(arena, stored, order)) {}

    void prepare(const Kernels &, const float *x, Quantization, std::byte *to) const override {
        memcpy(to, x, count_ * sizeof(float));
    }

    void multiply(
        const Kernels &kernels, size_t first_tile, size_t last_tile, const RowBlock &block, const Finish &finish,
        size_t outputs, std::byte *
    ) const override {
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
    static size_t bytes_of(const Order &order) { return round_up(order.size() * sizeof(float), LINE); }

    // Rows that stay in the second-level cache while all tiles of weights are used.
    static size_t rows_for_cache(size_t prepared_bytes) {
        constexpr size_t BUDGET = 128 << 10;
        return std::clamp<size_t>(BUDGET / prepared_bytes / TOGETHER * TOGETHER, TOGETHER, MAX_ROWS);
    }

    size_t count_;
    const float *weights_;  // of the network's arena
};

enum class Products { tables, pairs, real };

inline std::unique_ptr<const Rows> rows_for(
    Products products, Arena &arena, const StoredWeights &stored, const Order &order
) {
    switch (products) {
    case Products::tables:
        return std::make_unique<TableRows>(arena, stored, order);
    case Products::pairs:
        return std::make_unique<PairRows>(arena, stored, order);
    default:
        return std::make_unique<RealRows>(arena, stored, order);
    }
}

}  // namespace bayesbinn::inference
