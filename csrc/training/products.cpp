#include "products.hpp"

#include <string.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <vector>

#include "threads.hpp"

namespace bayesbinn {
namespace {

// Rows that a thread packs at a time: one word in the other direction.
constexpr size_t ROWS = 32;
// Outputs that a thread computes at a time. Each such piece builds its own tables, so it must not be small.
constexpr size_t OUTPUTS = 1024;
// Rows of an outer product that a thread computes at a time. Each such piece copies the inputs of its columns.
constexpr size_t ROWS_OF_A_PIECE = 128 * OUTER_ROWS;

size_t parts_of(size_t size, size_t part) { return size / part + (size % part != 0); }

// Calls body(piece) for all pieces.
template <class Body>
void each_piece(size_t pieces, int threads, const Body &body) {
    struct Context {
        size_t pieces;
        const Body &body;
        std::atomic<size_t> next{0};

        void run() {
            for (size_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) body(piece);
        }
    } context{pieces, body};
    if (pieces < 2) threads = 1;
    in_parallel(threads, [](void *self) { static_cast<Context *>(self)->run(); }, &context);
}

const SignKernels &kernels_of(Team team) {
    if (!team.kernels.signs) throw std::invalid_argument("this instruction set has no products of signs");
    return *team.kernels.signs;
}

}  // namespace

bool multiplies_signs(Team team) { return team.kernels.signs != nullptr; }

bool pack_signs(Team team, const float *weights, const SignMatrix &matrix) {
    const auto pack = kernels_of(team).pack;
    if (!weights || !matrix.by_rows || !matrix.by_columns) throw std::invalid_argument("a matrix has no memory");
    std::atomic<bool> are_signs{true};
    each_piece(parts_of(matrix.rows, ROWS), team.threads, [&](size_t piece) {
        if (!are_signs.load(std::memory_order_relaxed)) return;
        const size_t first = piece * ROWS;
        if (!pack(weights, matrix, first, std::min(first + ROWS, matrix.rows))) are_signs = false;
    });
    return are_signs;
}

void multiply_signs(Team team, const SignProduct &of, size_t examples) {
    const auto multiply = kernels_of(team).multiply;
    if (examples && of.outputs && (!of.y || (of.inputs && (!of.x || !of.signs))))
        throw std::invalid_argument("a matrix has no memory");
    // Blocks of examples of nearly the same size: all of them cost as much as a full one to look up.
    const size_t blocks = parts_of(examples, MOST_EXAMPLES), columns = parts_of(of.outputs, OUTPUTS);
    each_piece(blocks * columns, team.threads, [&](size_t piece) {
        const size_t block = piece / columns, begin = piece % columns * OUTPUTS;
        const Range range{begin, std::min(begin + OUTPUTS, of.outputs)};
        multiply(of, block * examples / blocks, (block + 1) * examples / blocks, range);
    });
}

bool multiplies_outer(Team team) { return team.kernels.outer != nullptr; }

void multiply_outer(Team team, const OuterProduct &of) {
    if (!team.kernels.outer) throw std::invalid_argument("this instruction set has no outer products");
    const OuterKernels &kernels = *team.kernels.outer;
    if (!of.rows || !of.columns) return;
    if (!of.product || (of.examples && (!of.gradients || !of.inputs)))
        throw std::invalid_argument("a matrix has no memory");
    if (!of.examples) {
        memset(of.product, 0, of.rows * of.columns * sizeof(float));
        return;
    }
    const size_t tiles = parts_of(of.rows, OUTER_ROWS), chunks = parts_of(of.examples, OUTER_EXAMPLES);
    const size_t columns = parts_of(of.columns, OUTER_COLUMNS), rows = parts_of(of.rows, ROWS_OF_A_PIECE);
    std::vector<float> packed(tiles * OUTER_ROWS * parts_of(of.examples, chunks));
    for (size_t chunk = 0; chunk < chunks; chunk++) {
        const size_t first = chunk * of.examples / chunks, count = (chunk + 1) * of.examples / chunks - first;
        each_piece(tiles, team.threads, [&](size_t tile) {
            const size_t row = tile * OUTER_ROWS;
            kernels.pack(of, first, count, row, packed.data() + row * count);
        });
        each_piece(columns * rows, team.threads, [&](size_t piece) {
            const size_t begin = piece % rows * ROWS_OF_A_PIECE, column = piece / rows * OUTER_COLUMNS;
            const Range range{begin, std::min(begin + ROWS_OF_A_PIECE, of.rows)};
            kernels.multiply(of, first, count, packed.data(), range, column);
        });
    }
}

}  // namespace bayesbinn
