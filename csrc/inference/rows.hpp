// The three ways to multiply a row of activations by a matrix of weights, behind one interface:
// a row is prepared once, and then every tile of outputs is computed from what was prepared.
#pragma once

#include "step.hpp"
#include "weights.hpp"

namespace bayesbinn::inference {

// `count` positions of one row, identical with the stored row and then padding.
inline Order padded(Order order, size_t unit) {
    order.resize(round_up(order.size(), unit), -1);
    return order;
}

// Bits and look-up tables: activations of 8 bits.
class TableRows {
   public:
    static constexpr size_t OUTPUTS = TILE;
    static constexpr bool QUANTISED = true;

    TableRows(Arena &arena, const StoredWeights &stored, const Order &order)
        : count_(order.size()), blocks_(round_up(count_, GROUP * BLOCK) / (GROUP * BLOCK)),
          weights_(weights_for_tables(arena, stored, padded(order, GROUP * BLOCK))) {
        for (size_t b = 0; b < blocks_; b++) offsets_.push_back((uint32_t)(b * BLOCK * TABLE));
    }

    size_t prepared_bytes() const { return LINE + blocks_ * BLOCK * TABLE; }

    void prepare(const Kernels &kernels, const float *x, Quantisation scale, std::byte *to) const {
        Head &head = *reinterpret_cast<Head *>(to);
        uint8_t *const tables = reinterpret_cast<uint8_t *>(to) + LINE;
        head = {scale.factor, 0};
        const size_t used = scale.inverse == 0.0f ? 0 : (count_ + GROUP - 1) / GROUP * TABLE;
        if (used) head.magnitude = kernels.build_tables(x, count_, scale.inverse, tables);
        memset(tables + used, 0, blocks_ * BLOCK * TABLE - used);
    }

    void tile(
        const Kernels &kernels, size_t tile, const std::byte *const *rows, size_t windows, const Finish &finish,
        size_t outputs, float *const *y
    ) const {
        int32_t totals[TOGETHER * TILE];
        const uint8_t *tables[TOGETHER];
        for (size_t n = 0; n < windows; n++) tables[n] = reinterpret_cast<const uint8_t *>(rows[n]) + LINE;
        const uint8_t *weights = weights_ + tile * blocks_ * BLOCK * 32;
        kernels.look_up(weights, blocks_, offsets_.data(), tables, windows, totals);
        for (size_t n = 0; n < windows; n++) {
            const Head &head = *reinterpret_cast<const Head *>(rows[n]);
            kernels.finish_totals(totals + TILE * n, head.magnitude, head.factor, finish, outputs, y[n]);
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
    static constexpr bool QUANTISED = false;

    PairRows(Arena &arena, const StoredWeights &stored, const Order &order)
        : count_(order.size()), words_((count_ + WORD - 1) / WORD),
          weights_(weights_for_pairs(arena, stored, padded(order, WORD))) {}

    size_t prepared_bytes() const { return words_ * WORD * 2 * sizeof(float); }

    void prepare(const Kernels &kernels, const float *x, Quantisation, std::byte *to) const {
        float *const pairs = reinterpret_cast<float *>(to);
        const size_t even = count_ / 2 * 2;
        kernels.build_pairs(x, even, pairs);
        memset(pairs + 2 * even, 0, (words_ * WORD - even) * 2 * sizeof(float));
        if (count_ > even) {
            const float last[2] = {x[even], 0.0f};
            kernels.build_pairs(last, 2, pairs + 2 * even);
        }
    }

    void tile(
        const Kernels &kernels, size_t tile, const std::byte *const *rows, size_t windows, const Finish &finish,
        size_t outputs, float *const *y
    ) const {
        float sums[TOGETHER * PAIR_TILE];
        const float *pairs[TOGETHER];
        for (size_t n = 0; n < windows; n++) pairs[n] = reinterpret_cast<const float *>(rows[n]);
        kernels.add_pairs(weights_ + tile * words_ * PAIR_TILE, words_, pairs, windows, sums);
        for (size_t n = 0; n < windows; n++) kernels.finish(sums + PAIR_TILE * n, finish, outputs, y[n]);
    }

   private:
    size_t count_, words_;
    const uint32_t *weights_;  // of the network's arena
};

// Real weights.
class RealRows {
   public:
    static constexpr size_t OUTPUTS = PAIR_TILE;
    static constexpr bool QUANTISED = false;

    RealRows(Arena &arena, const StoredWeights &stored, const Order &order)
        : count_(order.size()), weights_(weights_for_multiplying(arena, stored, order)) {}

    size_t prepared_bytes() const { return round_up(count_ * sizeof(float), LINE); }

    void prepare(const Kernels &, const float *x, Quantisation, std::byte *to) const {
        memcpy(to, x, count_ * sizeof(float));
    }

    void tile(
        const Kernels &kernels, size_t tile, const std::byte *const *rows, size_t windows, const Finish &finish,
        size_t outputs, float *const *y
    ) const {
        float sums[TOGETHER * PAIR_TILE];
        const float *x[TOGETHER];
        for (size_t n = 0; n < windows; n++) x[n] = reinterpret_cast<const float *>(rows[n]);
        kernels.multiply(weights_ + tile * count_ * PAIR_TILE, count_, x, windows, sums);
        for (size_t n = 0; n < windows; n++) kernels.finish(sums + PAIR_TILE * n, finish, outputs, y[n]);
    }

   private:
    size_t count_;
    const float *weights_;  // of the network's arena
};

}  // namespace bayesbinn::inference
