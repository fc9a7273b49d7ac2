// Runs inference under sanitizers (see sanitize.sh): every kernel of every instruction set of this CPU in memory
// blocks of exactly the needed size, and whole networks on ragged sizes, all against plain loops. With the argument
// "threads", only the parts where threads work together, for ThreadSanitizer.
#include <stdio.h>
#include <string.h>

#include <stdexcept>

#include "plain.hpp"

using namespace bayesbinn::inference;

namespace {

int failures = 0, checks = 0;

void expect(bool holds, const std::string &what) {
    checks++;
    if (holds) return;
    if (failures++ < 20) printf("FAILED: %s\n", what.c_str());
}

bool same(const Floats &a, const Floats &b) {
    return a.size() == b.size() && !memcmp(a.data(), b.data(), 4 * a.size());
}

// The largest difference relative to the largest number; infinite if anything is NaN or missing.
float difference(const Floats &a, const Floats &b) {
    if (a.size() != b.size()) return INFINITY;
    float most = 1e-3f, worst = 0;
    for (size_t i = 0; i < b.size(); i++) {
        const float off = fabsf(a[i] - b[i]);
        if (off != off) return INFINITY;
        worst = std::max(worst, off);
        most = std::max(most, fabsf(b[i]));
    }
    return worst / most;
}

// Limits may turn sums of 50 into outputs of 1, so rounding errors of the sums weigh more.
bool close(const Floats &a, const Floats &b) { return difference(a, b) < 5e-5f; }

// ---- kernels ----------------------------------------------------------------------------------------

void test_activations(const Kernels &k, size_t count, Random &random) {
    const std::string where = std::string(k.name) + ", " + std::to_string(count);
    Floats x = random.reals(count);
    float most = 0;
    for (float v : x) most = std::max(most, fabsf(v));
    expect(k.largest(x.data(), count) == most, where + ": largest");
    if (!count) return;
    const Quantization scale = Quantization::of(most);
    const size_t groups = (count + GROUP - 1) / GROUP;
    std::vector<uint8_t> tables(tables_bytes(count));
    const int32_t magnitude = k.build_tables(x.data(), count, scale.inverse, tables.data());
    int32_t total = 0;
    bool right = true;
    for (size_t g = 0; g < groups; g++)
        for (int entry = 0; entry < 16; entry++) {
            int32_t sum = 0;
            for (size_t j = 0; j < GROUP && GROUP * g + j < count; j++) {
                const int32_t q = (int32_t)lrintf(x[GROUP * g + j] * scale.inverse);
                if ((entry >> j & 1) == (q >= 0)) sum += abs(q);
                if (entry == 0) total += abs(q);
            }
            right = right &&
                sum == tables[table_at(g) + (size_t)entry] + 32 * tables[table_at(g) + HIGH_PARTS + (size_t)entry];
        }
    expect(right && magnitude == total, where + ": build_tables");
    for (float bad : {NAN, INFINITY, -INFINITY}) {
        x[count - 1] = bad;
        expect(k.largest(x.data(), count) != k.largest(x.data(), count), where + ": largest of what is not finite");
    }
}

// `full`: the largest possible entries in every table.
void test_look_up(const Kernels &k, size_t blocks, size_t windows, bool full, Random &random) {
    std::vector<uint8_t> weights(blocks * BLOCK * 32), tables[2];
    for (uint8_t &byte : weights) byte = (uint8_t)random.bits();
    std::vector<uint32_t> offsets;
    for (size_t b = 0; b < blocks; b++) offsets.push_back((uint32_t)((blocks - 1 - b) * BLOCK * TABLE));
    const uint8_t *at[2];
    for (size_t n = 0; n < windows; n++) {
        tables[n].resize(blocks * BLOCK * TABLE);
        for (size_t i = 0; i < tables[n].size(); i++) {
            const uint32_t most = i % (2 * TABLE) < HIGH_PARTS ? 31 : 15;
            tables[n][i] = (uint8_t)(full ? most : random.below(most + 1));
        }
        at[n] = tables[n].data();
    }
    std::vector<int32_t> totals(windows * TILE, -1), expected(windows * TILE, 0);
    std::vector<uint8_t> indices(2 * weights.size());
    k.expand(weights.data(), blocks, indices.data());
    k.look_up({weights.data(), false, blocks, offsets.data(), false}, at, windows, totals.data());
    for (size_t n = 0; n < windows; n++)
        for (size_t output = 0; output < TILE; output++)
            for (size_t g = 0; g < blocks * BLOCK; g++) {
                const size_t index = weights[g * 32 + output % 32] >> (output < 32 ? 0 : 4) & 15;
                const uint8_t *table = at[n] + offsets[g / BLOCK] + table_at(g % BLOCK);
                expected[n * TILE + output] += table[index] + 32 * table[HIGH_PARTS + index];
            }
    const std::string where = std::string(k.name) + ": look_up of " + std::to_string(blocks) + " blocks";
    expect(totals == expected, where);
    // The same from indices, in two parts: the second is added to the first.
    totals.assign(totals.size(), -1);
    const size_t half = blocks / 2;
    if (half) k.look_up({indices.data(), true, half, offsets.data(), false}, at, windows, totals.data());
    k.look_up(
        {indices.data() + half * BLOCK * 64, true, blocks - half, offsets.data() + half, half > 0}, at, windows,
        totals.data()
    );
    expect(totals == expected, where + " in two parts");
}

void test_transpose(const Kernels &k, size_t rows, size_t columns, Random &random) {
    const Floats x = random.reals(rows * columns);
    Floats y(x.size(), NAN), expected(x.size());
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++) expected[c * rows + r] = x[r * columns + c];
    k.transpose(x.data(), rows, columns, y.data());
    expect(
        y == expected, std::string(k.name) + ": transpose of " + std::to_string(rows) + "×" + std::to_string(columns)
    );
}

void test_pairs_and_products(const Kernels &k, size_t words, size_t windows, Random &random) {
    std::vector<uint32_t> bits(words * PAIR_TILE);
    for (uint32_t &word : bits) word = random.bits() << 1 ^ random.bits();
    const Floats w = random.reals(words * PAIR_TILE);
    Floats x[2], pairs[2], y(windows * PAIR_TILE, NAN), products(y), sums(y.size(), 0.0f), dots(y.size(), 0.0f);
    const float *pairs_at[2], *x_at[2];
    for (size_t n = 0; n < windows; n++) {
        x[n] = random.reals(words * WORD);
        pairs[n].resize(2 * x[n].size());
        k.build_pairs(x[n].data(), x[n].size(), pairs[n].data());
        pairs_at[n] = pairs[n].data();
        x_at[n] = x[n].data();
        for (size_t output = 0; output < PAIR_TILE; output++) {
            for (size_t i = 0; i < words * WORD; i += 2) {
                const uint32_t word = bits[i / WORD * PAIR_TILE + output] >> i % WORD;
                sums[n * PAIR_TILE + output] +=
                    (word & 1 ? x[n][i] : -x[n][i]) + (word & 2 ? x[n][i + 1] : -x[n][i + 1]);
            }
            for (size_t i = 0; i < words; i++) dots[n * PAIR_TILE + output] += w[i * PAIR_TILE + output] * x[n][i];
        }
    }
    k.add_pairs({bits.data(), false, words, false}, pairs_at, windows, y.data());
    k.multiply(w.data(), words, x_at, windows, products.data());
    expect(y == sums, std::string(k.name) + ": add_pairs of " + std::to_string(words) + " words");
    // The same bits from indices, in two parts: the second is added to the first.
    std::vector<uint32_t> indices(bits.size() * WORD / 2);
    k.expand_pairs(bits.data(), words, indices.data());
    const size_t half = words / 2;
    const float *rest_at[2];
    for (size_t n = 0; n < windows; n++) rest_at[n] = pairs_at[n] + half * WORD * 2;
    y.assign(y.size(), NAN);
    k.add_pairs({indices.data(), true, half, false}, pairs_at, windows, y.data());
    k.add_pairs({indices.data() + half * PAIR_TILE * WORD / 2, true, words - half, true}, rest_at, windows, y.data());
    expect(y == sums, std::string(k.name) + ": add_pairs of " + std::to_string(words) + " words in two parts");
    expect(products == dots, std::string(k.name) + ": multiply");
}

void test_elementwise(const Kernels &k, size_t count, Random &random) {
    const Floats x = random.reals(count), scale = random.reals(count), shift = random.reals(count);
    std::vector<int32_t> totals(count);
    for (int32_t &t : totals) t = (int32_t)random.below(1000);
    for (bool scaled : {false, true}) {
        const Finish f{scaled ? scale.data() : nullptr, scaled ? shift.data() : nullptr, -0.25f, 0.5f};
        Floats y(count), from_totals(count), expected, expected_totals, in_place = x;
        const auto finish = [&](float v, size_t i) {
            return std::min(std::max(scaled ? v * scale[i] + shift[i] : v, -0.25f), 0.5f);
        };
        for (size_t i = 0; i < count; i++) {
            expected.push_back(finish(x[i], i));
            expected_totals.push_back(finish(0.01f * (float)(2 * totals[i] - 700), i));
        }
        k.finish(x.data(), f, count, y.data());
        k.finish(in_place.data(), f, count, in_place.data());
        k.finish_totals(totals.data(), 700, 0.01f, f, count, from_totals.data());
        const std::string where = std::string(k.name) + ", " + std::to_string(count);
        expect(y == expected && in_place == expected, where + ": finish");
        expect(from_totals == expected_totals, where + ": finish_totals");
    }
    Floats y = scale, expected = scale;
    k.multiply_add(x.data(), shift.data(), count, y.data());
    k.take_larger(shift.data(), count, y.data());
    k.add(x.data(), count, y.data());
    k.scale(0.75f, count, y.data());
    for (size_t i = 0; i < count; i++) expected[i] = (std::max(scale[i] + x[i] * shift[i], shift[i]) + x[i]) * 0.75f;
    expect(y == expected, std::string(k.name) + ": the rest of " + std::to_string(count));
    if (!count) return;
    Floats nan(count, NAN), larger = x;
    k.take_larger(nan.data(), count, larger.data());
    k.take_larger(x.data(), count, larger.data());
    k.finish(larger.data(), {nullptr, nullptr, 0.0f, 1.0f}, count, larger.data());
    expect(larger[count - 1] != larger[count - 1], std::string(k.name) + ": NaN wins and stays");
}

void test_kernels(const Kernels &k) {
    Random random(1);
    for (size_t count = 0; count < 140; count++) {
        test_activations(k, count, random);
        test_elementwise(k, count, random);
    }
    for (size_t rows : {1, 3, 15, 16, 17, 40})
        for (size_t columns : {1, 2, 16, 31, 48}) test_transpose(k, rows, columns, random);
    for (size_t windows : {1, 2}) {
        for (size_t blocks : {1, 2, 3, 7, 263, 264, 265, 531})
            for (bool full : {false, true}) test_look_up(k, blocks, windows, full, random);
        for (size_t words : {0, 1, 2, 5}) test_pairs_and_products(k, words, windows, random);
    }
}

// ---- networks -----------------------------------------------------------------------------------------

Geometry random_geometry(Random &random) {
    for (;;) {
        Geometry g{};
        g.channels = random.from({1, 2, 3, 4, 5, 8, 9, 16, 31, 32, 33, 36, 64});
        g.height = 1 + random.below(8), g.width = 1 + random.below(8);
        g.kernel_height = 1 + random.below(3), g.kernel_width = 1 + random.below(3);
        g.stride_height = 1 + random.below(3), g.stride_width = 1 + random.below(3);
        g.top = random.below(3), g.left = random.below(3);
        g.dilation_height = 1 + random.below(2), g.dilation_width = 1 + random.below(2);
        g.groups = random.from({1, 1, 1, 2, 3, g.channels});
        g.outputs = g.groups * (g.groups == 1 ? random.from({1, 2, 5, 33, 64, 65, 70, 129}) : random.from({1, 1, 3}));
        const size_t rows = g.height + g.top + random.below(3), columns = g.width + g.left + random.below(3);
        const size_t span = g.dilation_height * (g.kernel_height - 1) + 1;
        const size_t across = g.dilation_width * (g.kernel_width - 1) + 1;
        if (g.channels % g.groups || span > rows || across > columns) continue;
        g.out_height = (rows - span) / g.stride_height + 1;
        g.out_width = (columns - across) / g.stride_width + 1;
        return g;
    }
}

// One layer: sums of integers must be exact, sums of floats close.
void test_layer(const Kernels &kernels, uint64_t seed) {
    Random random(seed);
    const Products products = (Products)random.below(3);
    const size_t networks = random.from({1, 1, 3}), batch = 1 + random.below(4);
    const int threads = 1 + (int)random.below(3);
    const bool own = networks > 1 && random.below(2);
    const std::string where = std::string(kernels.name) + ", layer of seed " + std::to_string(seed);
    if (random.below(2)) {
        const Geometry g = random_geometry(random);
        Compared net(kernels, networks, g.channels * g.height * g.width, batch, threads, seed);
        const size_t y = net.convolution(0, g, products, own);
        const bool exact = products == Products::tables && g.groups == 1;
        expect((exact ? same : close)(net.run(y), net.expected(y)), where + " (convolution)");
    } else {
        const size_t rows = random.from({1, 1, 2, 5}), count = random.from({1, 2, 3, 31, 32, 33, 63, 100, 257});
        Compared net(kernels, networks, rows * count, batch, threads, seed);
        const size_t y = net.linear(0, rows, random.from({1, 3, 31, 32, 33, 64, 65, 130, 300}), products, own);
        expect((products == Products::tables ? same : close)(net.run(y), net.expected(y)), where + " (linear)");
    }
}

// Enough rows for expanded bits, enough weights for several chunks.
void test_large_layers(const Kernels &kernels) {
    for (Products products : {Products::tables, Products::pairs, Products::real}) {
        const auto equal = products == Products::tables ? same : close;
        for (size_t batch : {3, 8, 33})
            for (size_t count : {833, 1700}) {
                Compared net(kernels, 1, count, batch, 2, batch + count);
                const size_t y = net.linear(0, 1, 70, products, false);
                const std::string where = std::to_string(batch) + " rows of " + std::to_string(count);
                expect(equal(net.run(y), net.expected(y)), std::string(kernels.name) + ": " + where);
            }
        for (size_t width : {1, 3, 12, 41}) {
            // Every second time, an odd number of tables per pixel, so that windows are gathered.
            const size_t channels = width % 2 ? 128 : 100;
            const Geometry g{channels, 3, width, 70, 3, width, 3, 3, 1, 1, 1, 1, 1, 1, 1};
            Compared net(kernels, 1, channels * 3 * width, 1, 2, width);
            const size_t y = net.convolution(0, g, products, false);
            const std::string where = std::string(kernels.name) + ": channels, " + std::to_string(width) + " wide";
            expect(equal(net.run(y), net.expected(y)), where);
        }
    }
}

// A row of windows wider than the space for totals; tables too far apart for 32-bit offsets take another path.
void test_wide_images(const Kernels &kernels) {
    const Geometry wide{32, 2, 301, 5, 2, 301, 1, 3, 1, 1, 0, 1, 1, 1, 1};
    Compared net(kernels, 1, 32 * 2 * 301, 1, 1, 5);
    const size_t y = net.convolution(0, wide, Products::tables, false);
    expect(same(net.run(y), net.expected(y)), std::string(kernels.name) + ": a wide image");
    Geometry far = wide;
    expect(TableConvolution::suits(far), "a ring of some kilobytes");
    far.kernel_height = 2, far.dilation_height = 1 << 20;
    expect(!TableConvolution::suits(far), "a ring of gigabytes");
}

// A row gives the same bits by itself and with others, however many weights it has.
void test_batches(const Kernels &kernels) {
    for (Products products : {Products::tables, Products::pairs})
        for (size_t count : {1700, 9000}) {
            constexpr size_t BATCH = 19, OUTPUTS = 70;
            Random random(count);
            const Weights w(random, 1, OUTPUTS, count, true);
            const Floats x = random.reals(BATCH * count);
            Floats together(BATCH * OUTPUTS), alone(BATCH * OUTPUTS);
            Network network(kernels, 1, count, 2);
            Finishing finishing;
            finishing.low = -INFINITY, finishing.high = INFINITY;
            network.seal(network.linear(0, 1, products, w.sets(), finishing), OUTPUTS);
            network.run(x.data(), BATCH, together.data());
            for (size_t i = 0; i < BATCH; i++) network.run(&x[i * count], 1, &alone[i * OUTPUTS]);
            expect(same(together, alone), std::string(kernels.name) + ": a single row, of " + std::to_string(count));
        }
}

// More examples than run at once: the networks of an ensemble run back and forth within one call and between calls.
void test_to_and_fro(const Kernels &kernels) {
    Compared net(kernels, 3, 20, 600, 2, 11);
    const size_t y = net.linear(net.linear(0, 1, 33, Products::tables, true), 1, 10, Products::pairs, true);
    for (int run = 0; run < 3; run++)
        expect(close(net.run(y), net.expected(y)), std::string(kernels.name) + ": an ensemble of many examples");
}

// Every kind of step in one network, so that values share memory; the last value is returned.
size_t build_mixed(Compared &net, Products products, bool own) {
    const Geometry first{6, 7, 5, 33, 7, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1},
        depth{33, 4, 3, 33, 4, 3, 3, 3, 1, 1, 1, 1, 1, 1, 33};
    const size_t image = net.transpose(0, 6, 35);
    const size_t a = net.convolution(image, first, products, own);
    const size_t b = net.pool(a, 33, 7, 5, 2, 2, true);
    const size_t c = net.convolution(b, depth, products, false);
    const size_t d = net.add(b, c);
    const size_t e = net.concatenate({d, b, d}, 12);
    const size_t f = net.pool(e, 99, 4, 3, 3, 2, false);
    const size_t g = net.tanh(net.affine(f, 4, 99, 1));
    const size_t h = net.transpose(g, 4, 99);
    const size_t i = net.linear(h, 2, 65, products, own);
    const size_t j = net.affine(i, 1, 2, 65);
    return net.softmax(net.linear(j, 1, 10, products, false), 1, 10, 1);
}

void test_mixed(const Kernels &kernels, Products products, size_t networks, size_t batch, uint64_t seed) {
    Floats first;
    for (int threads : {1, 2, 3}) {
        Compared net(kernels, networks, 6 * 35, batch, threads, seed);
        const size_t y = build_mixed(net, products, networks > 1);
        const Floats found = net.run(y);
        const std::string where = std::string(kernels.name) + ", mixed network of seed " + std::to_string(seed);
        // A difference in the last bit can become 1/127 after rounding to 8 bits, so only the shape of the result is
        // certain.
        const float off = difference(found, net.expected(y));
        if (products != Products::tables) expect(off < 2e-5f, where + ": off by " + std::to_string(off));
        float sum = 0;
        for (float v : found) sum += v;
        expect(fabsf(sum - (float)(networks * batch)) < 1e-3f * (float)(networks * batch), where + ": probabilities");
        if (threads == 1) first = found;
        expect(same(found, first), where + ": the same bits with " + std::to_string(threads) + " threads");
        expect(same(net.run(y), first), where + ": the same bits again");
    }
}

void test_threads(const Kernels &kernels) {
    for (int threads : {2, 3}) {
        for (int teams = 0; teams < 20; teams++) {
            Team team(threads);
            std::vector<long> slots((size_t)threads, 0);  // no atomics: only the barrier orders them
            for (int job = 0; job < 20; job++) {
                const std::function<void(int)> work = [&](int thread) {
                    slots[(size_t)thread]++;
                    team.barrier();
                    const long next = slots[(size_t)(thread + 1) % slots.size()];
                    team.barrier();
                    slots[(size_t)thread] += next - job - 1;  // 0 if the other was seen
                };
                team.run(work);
            }
            for (long slot : slots) expect(slot == 20, "every thread sees what the others did before the barrier");
        }
        Compared net(kernels, 2, 40, 3, threads, 7);
        const size_t y = net.linear(net.linear(0, 1, 70, Products::tables, true), 1, 10, Products::pairs, false);
        const Floats first = net.run(y);
        for (int run = 0; run < 300; run++) expect(same(net.run(y), first), "many small runs give the same bits");
        std::vector<std::thread> callers;
        std::vector<Floats> found(3);
        for (Floats &mine : found)
            callers.emplace_back([&] {
                for (int run = 0; run < 30; run++) mine = net.run(y);
            });
        for (std::thread &caller : callers) caller.join();
        for (const Floats &mine : found) expect(same(mine, first), "several callers take turns");
    }
}

}  // namespace

int main(int count, char **arguments) {
    const bool only_threads = count > 1 && !strcmp(arguments[1], "threads");
    std::string names;
    for (const char *name : {"portable", "neon", "avx2"}) {
        const Kernels *kernels;
        try {
            kernels = &choose_kernels(name);
        } catch (const std::runtime_error &) {
            continue;
        }
        names += std::string(kernels->name) + " ";
        test_threads(*kernels);
        for (Products products : {Products::tables, Products::pairs, Products::real})
            for (size_t networks : {1, 3})
                for (size_t batch : {1, 3, 300})
                    if (batch < 10 || (networks == 1 && !only_threads))
                        test_mixed(*kernels, products, networks, batch, 5 + batch);
        if (only_threads) continue;
        test_kernels(*kernels);
        test_large_layers(*kernels);
        test_batches(*kernels);
        test_to_and_fro(*kernels);
        test_wide_images(*kernels);
        for (uint64_t seed = 0; seed < 600; seed++) test_layer(*kernels, seed);
    }
    printf("%sinference: %d checks, ", names.c_str(), checks);
    printf(failures ? "%d failures\n" : "clean\n", failures);
    return failures != 0;
}
