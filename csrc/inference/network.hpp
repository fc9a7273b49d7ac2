// A network, or several that differ in some weights, ready to run.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "convolution.hpp"
#include "pointwise.hpp"
#include "team.hpp"

namespace bayesbinn::inference {

enum class Products { tables, pairs, real };

// One network's weights for all, or those of each network.
using WeightSets = std::vector<StoredWeights>;

// Built by one call per operation, in order; each returns the number of the value it gives. Value 0 is the
// input. Images are [height][width][channels]. After `seal`, `run` may be called from any thread.
class Network {
   public:
    Network(const Kernels &kernels, size_t networks, size_t input_count, int threads);

    size_t linear(
        size_t input, size_t rows, Products products, const WeightSets &weights, Finishing finishing
    );
    size_t convolution(
        size_t input, const Geometry &geometry, Products products, const WeightSets &weights, Finishing finishing
    );
    size_t pool(size_t input, size_t channels, PoolAxis rows, PoolAxis columns, bool average, Finishing finishing);
    size_t affine(size_t input, size_t outer, size_t channels, size_t inner, Finishing finishing);
    size_t elementwise(size_t input, size_t count, float (*function)(float));
    size_t softmax(size_t input, size_t outer, size_t count, size_t inner);
    size_t add(size_t first, size_t second, size_t count, float low, float high);
    size_t concatenate(std::vector<size_t> inputs, size_t outer, std::vector<size_t> lengths);
    size_t transpose(size_t input, size_t rows, size_t columns);

    void seal(size_t output, size_t output_count);

    // x: [batch][input_count]; y: [networks][batch][output_count].
    void run(const float *x, size_t batch, float *y);

    size_t networks() const { return networks_; }
    size_t input_count() const { return input_count_; }
    size_t output_count() const { return output_count_; }

   private:
    size_t new_value(size_t bytes, bool own, size_t kept = 1);
    bool is_own(const std::vector<size_t> &inputs, const Finishing &finishing, size_t weight_sets) const;
    bool runs_once(const Step &step) const;
    template <class Rows>
    size_t linear_as(size_t input, size_t rows, const WeightSets &weights, Finishing finishing);
    template <class Rows>
    size_t convolution_as(size_t input, const Geometry &geometry, const WeightSets &weights, Finishing finishing);
    size_t table_convolution(size_t input, const Geometry &, const WeightSets &weights, Finishing finishing);
    size_t depthwise_convolution(size_t input, const Geometry &, const WeightSets &weights, Finishing finishing);
    size_t convolution_value(size_t input, const Geometry &, const WeightSets &weights, const Finishing &finishing);
    void share_slots();
    void run_steps(const Frame &frame, size_t first, size_t last, size_t thread);
    void prepare_memory(size_t batch);

    const Kernels &kernels_;
    const size_t networks_, input_count_;
    const int threads_;
    Arena arena_;  // of the steps' weights
    std::vector<Value> values_;
    std::vector<std::unique_ptr<Step>> steps_;  // once `seal`ed: those that run once, then those of each network
    size_t once_ = 0;                           // how many run once
    size_t output_ = 0, output_count_ = 0;
    bool direct_ = false;  // the output is computed in the caller's array
    // An ensemble's weights may be more than the caches keep. Networks run to and fro: what was used last comes first.
    bool backwards_ = false;

    // Values that do not live at the same time share a slot of memory.
    std::vector<size_t> slot_of_, slot_bytes_;  // bytes of one example
    std::vector<Aligned<std::byte>> slots_, scratch_;
    size_t capacity_ = 0, most_at_once_ = 1;

    std::mutex running_;
    std::unique_ptr<Team> team_;
    long team_process_ = -1;
};

}  // namespace bayesbinn::inference
