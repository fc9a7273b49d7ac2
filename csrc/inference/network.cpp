#include "network.hpp"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace bayesbinn::inference {
namespace {

// Memory for the values of the examples that run at once: more would leave the caches.
constexpr size_t MEMORY_BUDGET = 8 << 20;
constexpr size_t MOST_AT_ONCE = 256;

size_t bytes_of(size_t floats) { return round_up(floats * sizeof(float), LINE); }

Order identity(size_t count) {
    Order order(count);
    for (size_t k = 0; k < count; k++) order[k] = (int32_t)k;
    return order;
}

}  // namespace

Network::Network(const Kernels &kernels, size_t networks, size_t input_count, int threads)
    : kernels_(kernels), networks_(networks), input_count_(input_count), threads_(std::max(1, threads)) {
    values_.push_back({input_count * sizeof(float), false, 1});  // the caller's array, without gaps
}

size_t Network::new_value(size_t bytes, bool own, size_t kept) {
    values_.push_back({bytes, own, kept});
    return values_.size() - 1;
}

// A value differs between the networks as soon as one of the things it is made of does.
bool Network::is_own(const std::vector<size_t> &inputs, const Finishing &finishing, size_t weight_sets) const {
    bool own = weight_sets > 1 || finishing.scale.size() > finishing.channels;
    for (size_t input : inputs) own = own || values_.at(input).own;
    return own;
}

// ---- products -------------------------------------------------------------------------------------

template <class Rows>
size_t Network::linear_as(size_t input, size_t rows, const WeightSets &weights, Finishing finishing) {
    const size_t count = weights[0].count, outputs = weights[0].outputs;
    std::vector<Rows> made;
    for (const StoredWeights &stored : weights) made.emplace_back(arena_, stored, identity(count));
    const auto sets = std::make_shared<const std::vector<Rows>>(std::move(made));
    const bool own = is_own({input}, finishing, weights.size());
    const size_t prepared = new_value(round_up(rows * sets->front().prepared_bytes(), LINE), values_.at(input).own);
    steps_.push_back(std::make_unique<PrepareRows<Rows>>(input, prepared, sets, rows, count));
    const size_t output = new_value(bytes_of(rows * outputs), own);
    steps_.push_back(
        std::make_unique<MultiplyRows<Rows>>(prepared, output, sets, rows, outputs, std::move(finishing))
    );
    return output;
}

size_t Network::linear(
    size_t input, size_t rows, Products products, const WeightSets &weights, Finishing finishing
) {
    switch (products) {
        case Products::tables: return linear_as<TableRows>(input, rows, weights, std::move(finishing));
        case Products::pairs: return linear_as<PairRows>(input, rows, weights, std::move(finishing));
        default: return linear_as<RealRows>(input, rows, weights, std::move(finishing));
    }
}

size_t Network::convolution_value(
    size_t input, const Geometry &g, const WeightSets &weights, const Finishing &finishing
) {
    const bool own = is_own({input}, finishing, weights.size());
    // The first layer of an ensemble: all networks at once, so that its input is prepared once.
    const size_t kept = own && !values_.at(input).own ? networks_ : 1;
    return new_value(bytes_of(g.outputs * g.out_height * g.out_width), own, kept);
}

template <class Rows>
size_t Network::convolution_as(size_t input, const Geometry &g, const WeightSets &weights, Finishing finishing) {
    std::vector<Rows> sets;
    const Order order = g.window_order(g.group_channels());
    for (const StoredWeights &stored : weights)
        for (size_t group = 0; group < g.groups; group++) {
            StoredWeights part = stored;
            part.outputs = g.group_outputs();
            if (part.bits) part.bits += group * part.outputs * part.row_bytes();
            if (part.reals) part.reals += group * part.outputs * part.count;
            sets.emplace_back(arena_, part, order);
        }
    const size_t output = convolution_value(input, g, weights, finishing);
    steps_.push_back(std::make_unique<WindowConvolution<Rows>>(
        input, output, g, std::make_shared<const std::vector<Rows>>(std::move(sets)), std::move(finishing)
    ));
    return output;
}

size_t Network::table_convolution(
    size_t input, const Geometry &g, const WeightSets &weights, Finishing finishing
) {
    const Order order = g.window_order(TableConvolution::tap_positions(g));
    std::vector<const uint8_t *> packed;
    for (const StoredWeights &stored : weights) packed.push_back(weights_for_tables(arena_, stored, order));
    const size_t output = convolution_value(input, g, weights, finishing);
    steps_.push_back(
        std::make_unique<TableConvolution>(input, output, g, std::move(packed), std::move(finishing))
    );
    return output;
}

size_t Network::depthwise_convolution(
    size_t input, const Geometry &g, const WeightSets &weights, Finishing finishing
) {
    Aligned<float> taps;
    for (const StoredWeights &stored : weights)
        for (size_t tap = 0; tap < g.taps(); tap++)
            for (size_t c = 0; c < g.channels; c++) taps.push_back(stored.value(c, tap));
    const size_t output = convolution_value(input, g, weights, finishing);
    steps_.push_back(
        std::make_unique<DepthwiseConvolution>(input, output, g, std::move(taps), std::move(finishing))
    );
    return output;
}

// Grouped convolutions have few weights per output, too few for tables or pairs to pay.
size_t Network::convolution(
    size_t input, const Geometry &g, Products products, const WeightSets &weights, Finishing finishing
) {
    if (g.groups > 1 && g.groups == g.channels && g.groups == g.outputs)
        return depthwise_convolution(input, g, weights, std::move(finishing));
    if (products == Products::real || g.groups > 1)
        return convolution_as<RealRows>(input, g, weights, std::move(finishing));
    if (products == Products::pairs) return convolution_as<PairRows>(input, g, weights, std::move(finishing));
    if (TableConvolution::suits(g)) return table_convolution(input, g, weights, std::move(finishing));
    return convolution_as<TableRows>(input, g, weights, std::move(finishing));
}

// ---- the rest -------------------------------------------------------------------------------------

size_t Network::pool(
    size_t input, size_t channels, PoolAxis rows, PoolAxis columns, bool average, Finishing finishing
) {
    const size_t count = channels * rows.start.size() * columns.start.size();
    const size_t output = new_value(bytes_of(count), is_own({input}, finishing, 1));
    steps_.push_back(std::make_unique<Pool>(
        input, output, channels, std::move(rows), std::move(columns), average, std::move(finishing)
    ));
    return output;
}

size_t Network::affine(size_t input, size_t outer, size_t channels, size_t inner, Finishing finishing) {
    const size_t output = new_value(bytes_of(outer * channels * inner), is_own({input}, finishing, 1));
    steps_.push_back(std::make_unique<Affine>(input, output, outer, channels, inner, std::move(finishing)));
    return output;
}

size_t Network::elementwise(size_t input, size_t count, float (*function)(float)) {
    const size_t output = new_value(bytes_of(count), values_.at(input).own);
    steps_.push_back(std::make_unique<Elementwise>(input, output, count, function));
    return output;
}

size_t Network::softmax(size_t input, size_t outer, size_t count, size_t inner) {
    const size_t output = new_value(bytes_of(outer * count * inner), values_.at(input).own);
    steps_.push_back(std::make_unique<Softmax>(input, output, outer, count, inner));
    return output;
}

size_t Network::add(size_t first, size_t second, size_t count, float low, float high) {
    const size_t output = new_value(bytes_of(count), is_own({first, second}, {}, 1));
    steps_.push_back(std::make_unique<Add>(first, second, output, count, low, high));
    return output;
}

size_t Network::concatenate(std::vector<size_t> inputs, size_t outer, std::vector<size_t> lengths) {
    size_t count = 0;
    for (size_t length : lengths) count += outer * length;
    const size_t output = new_value(bytes_of(count), is_own(inputs, {}, 1));
    steps_.push_back(std::make_unique<Concatenate>(std::move(inputs), output, outer, std::move(lengths)));
    return output;
}

size_t Network::transpose(size_t input, size_t rows, size_t columns) {
    const size_t output = new_value(bytes_of(rows * columns), values_.at(input).own);
    steps_.push_back(std::make_unique<Transpose>(input, output, rows, columns));
    return output;
}

// ---- memory ---------------------------------------------------------------------------------------

bool Network::runs_once(const Step &step) const {
    const Value &value = values_[step.output];
    return !value.own || value.kept > 1;
}

void Network::seal(size_t output, size_t output_count) {
    output_ = output;
    output_count_ = output_count;
    // What all networks share comes first: it needs nothing of what follows.
    const auto middle = std::stable_partition(steps_.begin(), steps_.end(), [this](const std::unique_ptr<Step> &step) {
        return runs_once(*step);
    });
    once_ = (size_t)(middle - steps_.begin());
    // The last value goes straight to the caller, unless all networks' are computed at once or they share it.
    Value &last = values_[output];
    direct_ = networks_ == 1 || (last.own && last.kept == 1);
    if (direct_) last.bytes = output_count * sizeof(float);
    share_slots();
    size_t bytes = 1;
    for (size_t slot : slot_bytes_) bytes += slot;
    most_at_once_ = std::min(MOST_AT_ONCE, std::max((size_t)threads_, MEMORY_BUDGET / bytes));
}

void Network::share_slots() {
    std::vector<size_t> last_use(values_.size(), 0);
    std::vector<bool> repeated(values_.size(), false);
    for (size_t i = once_; i < steps_.size(); i++) repeated[steps_[i]->output] = true;
    for (size_t i = 0; i < steps_.size(); i++)
        for (size_t input : steps_[i]->inputs)
            // What was computed once must outlive the steps of every network.
            last_use[input] = i >= once_ && !repeated[input] ? steps_.size() : std::max(last_use[input], i);
    last_use[output_] = steps_.size();
    slot_of_.assign(values_.size(), 0);
    std::vector<size_t> free;
    for (size_t i = 0; i < steps_.size(); i++) {
        const Step &step = *steps_[i];
        const size_t bytes = values_[step.output].bytes * values_[step.output].kept;
        // The free slot that has to grow least.
        const auto best = std::min_element(free.begin(), free.end(), [&](size_t a, size_t b) {
            const auto cost = [&](size_t slot) {
                return slot_bytes_[slot] < bytes ? bytes - slot_bytes_[slot] : 0;
            };
            return cost(a) < cost(b);
        });
        size_t slot;
        if (best == free.end()) {
            slot = slot_bytes_.size();
            slot_bytes_.push_back(0);
        } else {
            slot = *best;
            free.erase(best);
        }
        slot_bytes_[slot] = std::max(slot_bytes_[slot], bytes);
        slot_of_[step.output] = slot;
        std::vector<size_t> ended(step.inputs);
        std::sort(ended.begin(), ended.end());
        ended.erase(std::unique(ended.begin(), ended.end()), ended.end());
        for (size_t input : ended)
            if (input != 0 && last_use[input] == i) free.push_back(slot_of_[input]);
    }
}

void Network::prepare_memory(size_t batch) {
    if (scratch_.empty()) {
        size_t bytes = 0;
        for (const auto &step : steps_) bytes = std::max(bytes, step->scratch_bytes());
        for (int thread = 0; thread < threads_; thread++) scratch_.emplace_back(bytes);
    }
    if (batch > capacity_) {
        slots_.clear();
        for (size_t bytes : slot_bytes_) slots_.emplace_back(bytes * batch);
        capacity_ = batch;
    }
    if (team_process_ != (long)getpid()) {
        team_.release();  // after a fork its threads do not exist: nothing can be joined
        team_ = std::make_unique<Team>(threads_);
        team_process_ = (long)getpid();
    }
}

// ---- running --------------------------------------------------------------------------------------

void Network::run_steps(const Frame &frame, size_t first, size_t last, size_t thread) {
    const size_t threads = (size_t)threads_;
    for (size_t i = first; i < last; i++) {
        const size_t tasks = steps_[i]->tasks(frame), end = tasks * (thread + 1) / threads;
        for (size_t task = tasks * thread / threads; task < end; task++)
            steps_[i]->run(frame, task, scratch_[thread].data());
        team_->barrier();
    }
}

void Network::run(const float *x, size_t batch, float *y) {
    if (batch == 0) return;
    const std::lock_guard<std::mutex> lock(running_);
    const size_t at_once = std::min(batch, most_at_once_), threads = (size_t)threads_;
    prepare_memory(at_once);
    team_->run([&](int index) {
        const size_t thread = (size_t)index;
        Frame frame{kernels_, values_, std::vector<std::byte *>(values_.size()), 0, threads, networks_, 0};
        for (size_t value = 1; value < values_.size(); value++) frame.at[value] = slots_[slot_of_[value]].data();
        bool backwards = backwards_;
        for (size_t first = 0; first < batch; first += at_once, backwards = !backwards) {
            frame.batch = std::min(at_once, batch - first);
            frame.network = 0;
            // Steps only read their inputs, and value 0 is never an output.
            frame.at[0] = reinterpret_cast<std::byte *>(const_cast<float *>(x + first * input_count_));
            if (direct_) frame.at[output_] = reinterpret_cast<std::byte *>(y + first * output_count_);
            run_steps(frame, 0, once_, thread);
            for (size_t i = 0; i < networks_; i++) {
                frame.network = backwards ? networks_ - 1 - i : i;
                float *const to = y + (frame.network * batch + first) * output_count_;
                if (direct_) frame.at[output_] = reinterpret_cast<std::byte *>(to);
                run_steps(frame, once_, steps_.size(), thread);
                if (direct_) continue;
                for (size_t example = thread; example < frame.batch; example += threads)
                    memcpy(
                        to + example * output_count_, frame.get(output_, frame.network, example),
                        output_count_ * sizeof(float)
                    );
                team_->barrier();
            }
        }
    });
    if ((batch + at_once - 1) / at_once % 2) backwards_ = !backwards_;
}

}  // namespace bayesbinn::inference
