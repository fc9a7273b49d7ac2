// A network, or several that differ in some weights, ready to run.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "convolution.hpp"
#include "pointwise.hpp"
#include "session.hpp"

namespace bayesbinn::inference {

// One set of weights for all networks, or one for each.
using WeightSets = std::vector<StoredWeights>;

// Built by one call per operation, in order; each returns the number of the value it computes. Value 0 is the
// input. Images are [height][width][channels]. After `seal`, `run` may be called from any thread.
//
// The caller must keep its arrays of weights and scales in place until `seal`: operations with the same array
// share one copy. If the weights and the memory of a run do not fit into `max_memory` bytes together, `OverLimit`
// is thrown before anything is allocated.
class Network {
   public:
    Network(const Kernels &kernels, size_t networks, size_t input_count, int threads, uint64_t max_memory = UINT64_MAX);
    ~Network();
    Network(const Network &) = delete;
    Network &operator=(const Network &) = delete;

    size_t linear(size_t input, size_t rows, Products products, const WeightSets &weights, Finishing finishing);
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

    // A copy of the caller's numbers, for a `Finishing`.
    SharedFloats shared_floats(const float *numbers, size_t count);

    void seal(size_t output, size_t output_count);

    // x: [batch][input_count]; y: [networks][batch][output_count].
    void run(const float *x, size_t batch, float *y);

    size_t networks() const { return networks_; }
    size_t input_count() const { return input_count_; }
    size_t output_count() const { return output_count_; }
    uint64_t memory() const { return budget_.taken(); }  // bytes: the weights and most of what a run takes

   private:
    using Key = std::array<size_t, 8>;
    struct Owned {
        virtual ~Owned() = default;
    };
    template <class T>
    struct OwnedAs;
    static Key key(const WeightSets &weights, Products products, size_t taps, size_t stride, size_t groups);
    template <class T, class Make>
    const T *shared(const Key &key, Make make);
    Order window_order(const Geometry &geometry, size_t stride) const;
    size_t new_value(size_t bytes, bool own, size_t kept = 1);
    bool is_own(const std::vector<size_t> &inputs, const Finishing &finishing, size_t weight_sets) const;
    bool runs_once(const Step &step) const;
    size_t window_convolution(
        size_t input, const Geometry &geometry, Products products, const WeightSets &weights, Finishing finishing
    );
    size_t table_convolution(size_t input, const Geometry &, const WeightSets &weights, Finishing finishing);
    size_t depthwise_convolution(size_t input, const Geometry &, const WeightSets &weights, Finishing finishing);
    size_t convolution_value(size_t input, const Geometry &, const WeightSets &weights, const Finishing &finishing);
    void share_slots();
    void plan_memory();
    Session &session();
    void run_steps(Session &session, const Frame &frame, size_t first, size_t last, size_t thread) const;

    const Kernels &kernels_;
    const size_t networks_, input_count_;
    int threads_;
    Budget budget_;
    Arena arena_;                                                  // of the steps' weights
    std::vector<std::unique_ptr<Owned>> owned_;                    // what several steps may use
    std::map<std::pair<const void *, Key>, const void *> shared_;  // by type and key, until `seal`
    std::vector<Value> values_;
    std::vector<std::unique_ptr<Step>> steps_;  // after `seal`: those that run once, then those of each network
    size_t once_ = 0;                           // how many run once
    size_t output_ = 0, output_count_ = 0;
    bool direct_ = false;  // the output is computed in the caller's array
    // An ensemble's weights may not fit in the caches, so networks run back and forth: the last one used runs first.
    bool backwards_ = false;

    // Values that do not live at the same time share a slot of memory.
    std::vector<size_t> slot_of_, slot_bytes_;  // bytes of one example
    size_t scratch_bytes_ = 0, max_at_once_ = 1;
    std::atomic<Session *> session_;
};

}  // namespace bayesbinn::inference
