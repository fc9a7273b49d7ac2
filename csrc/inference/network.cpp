#include "network.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <set>

namespace bayesbinn::inference {
namespace {

// Memory for the values of the examples that run at once: more would not fit in the caches.
constexpr size_t MEMORY_BUDGET = 8 << 20;
constexpr size_t MAX_AT_ONCE = 256;
// Up to this size, each thread gets an example; larger ones run one by one, with all threads on each.
constexpr size_t MEMORY_OF_THREADS = 64 << 20;
// Limits for the prepared rows of one example and for the outputs of all networks; anything larger is not kept.
constexpr size_t MAX_PREPARED = 4 << 20, MAX_KEPT = 64 << 20;

size_t bytes_of(size_t floats) { return round_up(floats * sizeof(float), LINE); }

Order identity(size_t count) {
    Order order(count);
    for (size_t k = 0; k < count; k++) order[k] = (int32_t)k;
    return order;
}

}  // namespace

Network::Network(const Kernels &kernels, size_t networks, size_t input_count, int threads, uint64_t max_memory)
    : kernels_(kernels), networks_(networks), input_count_(input_count), threads_(std::max(1, threads)),
      budget_(max_memory), arena_(budget_), session_(new Session) {
    values_.push_back({input_count * sizeof(float), false, 1});  // the caller's array, without gaps
}

Network::~Network() {
    Session *const last = session_;
    if (last->of_this_process()) delete last;  // otherwise its threads do not exist and cannot be joined
}

size_t Network::new_value(size_t bytes, bool own, size_t kept) {
    values_.push_back({bytes, own, kept});
    return values_.size() - 1;
}

// A value differs between the networks if anything it is computed from does.
bool Network::is_own(const std::vector<size_t> &inputs, const Finishing &finishing, size_t weight_sets) const {
    bool own = weight_sets > 1 || finishing.own();
    for (size_t input : inputs) own = own || values_.at(input).own;
    return own;
}

// ---- weights --------------------------------------------------------------------------------------

// Where weights come from, and the order they are put in.
Network::Key Network::key(const WeightSets &weights, Products products, size_t taps, size_t stride, size_t groups) {
    const StoredWeights &first = weights[0];
    const size_t address = (size_t)(first.bits ? (const void *)first.bits : first.reals);
    return {address, weights.size(), first.outputs, first.count, (size_t)products, taps, stride, groups};
}

template <class T>
struct Network::OwnedAs : Owned {
    explicit OwnedAs(T made) : value(std::move(made)) {}
    const T value;
    static constexpr char TYPE = 0;  // its address stands for the type
};

template <class T, class Make>
const T *Network::shared(const Key &key, Make make) {
    const void *&found = shared_[{&OwnedAs<T>::TYPE, key}];
    if (!found) {
        auto made = std::make_unique<OwnedAs<T>>(make());
        found = &made->value;
        owned_.push_back(std::move(made));
    }
    return static_cast<const T *>(found);
}

SharedFloats Network::shared_floats(const float *numbers, size_t count) {
    return shared<Aligned<float>>({(size_t)numbers, count, 0, 0, 0, 0, 0, 0}, [&] {
        budget_.take(count * sizeof(float));
        return Aligned<float>(numbers, numbers + count);
    });
}

Order Network::window_order(const Geometry &g, size_t stride) const {
    budget_.check(2 * g.taps() * stride * sizeof(int32_t));  // it is copied once, with padding
    return g.window_order(stride);
}

// ---- products -------------------------------------------------------------------------------------

size_t Network::linear(size_t input, size_t rows, Products products, const WeightSets &weights, Finishing finishing) {
    const size_t count = weights[0].count, outputs = weights[0].outputs;
    const RowSets sets = shared<std::vector<std::unique_ptr<const Rows>>>(key(weights, products, 1, count, 1), [&] {
        budget_.check(2 * count * sizeof(int32_t));
        const Order order = identity(count);
        std::vector<std::unique_ptr<const Rows>> made;
        for (const StoredWeights &stored : weights) made.push_back(rows_for(products, arena_, stored, order));
        return made;
    });
    const bool own = is_own({input}, finishing, weights.size());
    const uint64_t prepared_bytes = (uint64_t)rows * sets->front()->prepared_bytes;
    if (rows > 1 && prepared_bytes > MAX_PREPARED) {
        const size_t output = new_value(bytes_of(rows * outputs), own);
        steps_.push_back(
            std::make_unique<StripsOfRows>(input, output, sets, rows, count, outputs, std::move(finishing))
        );
        return output;
    }
    const size_t prepared = new_value(round_up((size_t)prepared_bytes, LINE), values_.at(input).own);
    steps_.push_back(std::make_unique<PrepareRows>(input, prepared, sets, rows, count));
    const size_t output = new_value(bytes_of(rows * outputs), own);
    steps_.push_back(std::make_unique<MultiplyRows>(prepared, output, sets, rows, outputs, std::move(finishing)));
    return output;
}

size_t Network::convolution_value(
    size_t input, const Geometry &g, const WeightSets &weights, const Finishing &finishing
) {
    const bool own = is_own({input}, finishing, weights.size());
    const size_t bytes = bytes_of(g.outputs * g.windows());
    // The first layer of an ensemble: all networks at once, so that its input is prepared once.
    const bool at_once = own && !values_.at(input).own && bytes <= MAX_KEPT / networks_;
    return new_value(bytes, own, at_once ? networks_ : 1);
}

size_t Network::window_convolution(
    size_t input, const Geometry &g, Products products, const WeightSets &weights, Finishing finishing
) {
    const size_t channels = g.group_channels();
    const Key origin = key(weights, products, g.taps(), channels, g.groups);
    const RowSets sets = shared<std::vector<std::unique_ptr<const Rows>>>(origin, [&] {
        budget_.take((uint64_t)weights.size() * g.groups * (sizeof(TableRows) + sizeof(void *)));
        const Order order = window_order(g, channels);
        std::vector<std::unique_ptr<const Rows>> made;
        made.reserve(weights.size() * g.groups);
        for (const StoredWeights &stored : weights)
            for (size_t group = 0; group < g.groups; group++) {
                StoredWeights part = stored;
                part.outputs = g.group_outputs();
                if (part.bits) part.bits += group * part.outputs * part.row_bytes();
                if (part.reals) part.reals += group * part.outputs * part.count;
                made.push_back(rows_for(products, arena_, part, order));
            }
        return made;
    });
    const size_t output = convolution_value(input, g, weights, finishing);
    steps_.push_back(std::make_unique<WindowConvolution>(input, output, g, sets, std::move(finishing)));
    return output;
}

size_t Network::table_convolution(size_t input, const Geometry &g, const WeightSets &weights, Finishing finishing) {
    const size_t stride = TableConvolution::tap_positions(g);
    const PackedSets packed =
        shared<std::vector<const uint8_t *>>(key(weights, Products::tables, g.taps(), stride, 1), [&] {
            const Order order = window_order(g, stride);
            std::vector<const uint8_t *> made;
            for (const StoredWeights &stored : weights) made.push_back(weights_for_tables(arena_, stored, order));
            return made;
        });
    const size_t output = convolution_value(input, g, weights, finishing);
    steps_.push_back(std::make_unique<TableConvolution>(input, output, g, packed, std::move(finishing)));
    return output;
}

size_t Network::depthwise_convolution(size_t input, const Geometry &g, const WeightSets &weights, Finishing finishing) {
    const SharedFloats taps = shared<Aligned<float>>(key(weights, Products::real, g.taps(), 1, g.groups), [&] {
        const uint64_t count = (uint64_t)weights.size() * g.taps() * g.channels;
        budget_.take(count * sizeof(float));
        Aligned<float> made;
        made.reserve((size_t)count);
        for (const StoredWeights &stored : weights)
            for (size_t tap = 0; tap < g.taps(); tap++)
                for (size_t c = 0; c < g.channels; c++) made.push_back(stored.value(c, tap));
        return made;
    });
    const size_t output = convolution_value(input, g, weights, finishing);
    steps_.push_back(std::make_unique<DepthwiseConvolution>(input, output, g, taps, std::move(finishing)));
    return output;
}

// Grouped convolutions have too few weights per output for tables or pairs to pay off.
size_t Network::convolution(
    size_t input, const Geometry &g, Products products, const WeightSets &weights, Finishing finishing
) {
    if (g.groups > 1 && g.groups == g.channels && g.groups == g.outputs)
        return depthwise_convolution(input, g, weights, std::move(finishing));
    if (g.groups > 1) products = Products::real;
    if (products == Products::tables && TableConvolution::suits(g))
        return table_convolution(input, g, weights, std::move(finishing));
    return window_convolution(input, g, products, weights, std::move(finishing));
}

// ---- the rest -------------------------------------------------------------------------------------

size_t Network::pool(
    size_t input, size_t channels, PoolAxis rows, PoolAxis columns, bool average, Finishing finishing
) {
    const size_t count = channels * rows.count * columns.count;
    const size_t output = new_value(bytes_of(count), is_own({input}, finishing, 1));
    steps_.push_back(std::make_unique<Pool>(input, output, channels, rows, columns, average, std::move(finishing)));
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
    // Steps that all networks share come first: they need nothing from the rest.
    std::vector<std::unique_ptr<Step>> ordered;
    for (const bool once : {true, false}) {
        for (std::unique_ptr<Step> &step : steps_)
            if (step && runs_once(*step) == once) ordered.push_back(std::move(step));
        if (once) once_ = ordered.size();
    }
    steps_ = std::move(ordered);
    // The last value goes straight to the caller, unless all networks compute it at once or share it.
    Value &last = values_[output];
    direct_ = networks_ == 1 || (last.own && last.kept == 1);
    if (direct_) last.bytes = output_count * sizeof(float);
    share_slots();
    plan_memory();
    shared_.clear();
}

// How many examples run at once, on how many threads: as many as the limit allows.
void Network::plan_memory() {
    uint64_t bytes = 1;
    for (size_t slot : slot_bytes_) bytes += slot;
    for (const auto &step : steps_) scratch_bytes_ = std::max(scratch_bytes_, step->scratch_bytes());
    budget_.check(bytes + scratch_bytes_);  // one example on one thread
    if (scratch_bytes_) threads_ = (int)std::min((uint64_t)threads_, (budget_.left() - bytes) / scratch_bytes_);
    budget_.take((uint64_t)threads_ * scratch_bytes_);
    const uint64_t wanted = std::max(MEMORY_BUDGET / bytes, std::min((uint64_t)threads_, MEMORY_OF_THREADS / bytes));
    max_at_once_ = (size_t)std::clamp<uint64_t>(std::min(wanted, budget_.left() / bytes), 1, MAX_AT_ONCE);
    budget_.take(max_at_once_ * bytes);
}

void Network::share_slots() {
    std::vector<size_t> last_use(values_.size(), 0);
    std::vector<bool> repeated(values_.size(), false);
    for (size_t i = once_; i < steps_.size(); i++) repeated[steps_[i]->output] = true;
    for (size_t i = 0; i < steps_.size(); i++)
        for (size_t input : steps_[i]->inputs)
            // Values that are computed once must outlive the steps of every network.
            last_use[input] = i >= once_ && !repeated[input] ? steps_.size() : std::max(last_use[input], i);
    last_use[output_] = steps_.size();
    slot_of_.assign(values_.size(), 0);
    std::set<std::pair<size_t, size_t>> free;  // bytes, slot
    for (size_t i = 0; i < steps_.size(); i++) {
        const Step &step = *steps_[i];
        const size_t bytes = values_[step.output].bytes * values_[step.output].kept;
        // The caller's array needs no slot; otherwise take the smallest that fits, or the one that must grow least.
        if (!(direct_ && step.output == output_)) {
            auto best = free.lower_bound({bytes, 0});
            if (best == free.end() && !free.empty()) best = std::prev(best);
            size_t slot;
            if (best == free.end()) {
                slot = slot_bytes_.size();
                slot_bytes_.push_back(0);
            } else {
                slot = best->second;
                free.erase(best);
            }
            slot_bytes_[slot] = std::max(slot_bytes_[slot], bytes);
            slot_of_[step.output] = slot;
        }
        for (size_t input : std::set<size_t>(step.inputs.begin(), step.inputs.end()))
            if (input != 0 && last_use[input] == i) free.insert({slot_bytes_[slot_of_[input]], slot_of_[input]});
    }
}

Session &Network::session() {
    Session *present = session_.load(std::memory_order_acquire);
    if (present->of_this_process()) return *present;
    auto fresh = std::make_unique<Session>();
    // If two threads get here, the second one uses the first one's session.
    return session_.compare_exchange_strong(present, fresh.get()) ? *fresh.release() : *present;
}

// ---- running --------------------------------------------------------------------------------------

void Network::run_steps(Session &session, const Frame &frame, size_t first, size_t last, size_t thread) const {
    for (size_t i = first; i < last; i++) {
        const size_t tasks = steps_[i]->tasks(frame), end = tasks * (thread + 1) / frame.threads;
        for (size_t task = tasks * thread / frame.threads; task < end; task++)
            steps_[i]->run(frame, task, session.scratch[thread].data());
        session.team->barrier();
    }
}

void Network::run(const float *x, size_t batch, float *y) {
    if (batch == 0) return;
    Session &session = this->session();
    const std::lock_guard<Mutex> lock(session.running);
    const size_t at_once = std::min(batch, max_at_once_);
    session.prepare(slot_bytes_, at_once, scratch_bytes_, threads_);
    const size_t threads = (size_t)session.team->threads();
    Frame blank{kernels_, values_, std::vector<std::byte *>(values_.size()), 0, threads, networks_, 0};
    for (size_t value = 1; value < values_.size(); value++)
        if (!slot_bytes_.empty()) blank.at[value] = session.slots[slot_of_[value]].data();
    std::vector<Frame> frames(threads, blank);  // allocated here: the threads of a team allocate nothing
    session.team->run([&](int index) {
        const size_t thread = (size_t)index;
        Frame &frame = frames[thread];
        bool backwards = backwards_;
        for (size_t first = 0; first < batch; first += at_once, backwards = !backwards) {
            frame.batch = std::min(at_once, batch - first);
            frame.network = 0;
            // Steps only read their inputs, and value 0 is never an output.
            frame.at[0] = reinterpret_cast<std::byte *>(const_cast<float *>(x + first * input_count_));
            if (direct_) frame.at[output_] = reinterpret_cast<std::byte *>(y + first * output_count_);
            run_steps(session, frame, 0, once_, thread);
            for (size_t i = 0; i < networks_; i++) {
                frame.network = backwards ? networks_ - 1 - i : i;
                float *const to = y + (frame.network * batch + first) * output_count_;
                if (direct_) frame.at[output_] = reinterpret_cast<std::byte *>(to);
                run_steps(session, frame, once_, steps_.size(), thread);
                if (direct_) continue;
                for (size_t example = thread; example < frame.batch; example += threads)
                    memcpy(
                        to + example * output_count_, frame.get(output_, frame.network, example),
                        output_count_ * sizeof(float)
                    );
                session.team->barrier();
            }
        }
    });
    if ((batch + at_once - 1) / at_once % 2) backwards_ = !backwards_;
}

}  // namespace bayesbinn::inference
