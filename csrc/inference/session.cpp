#include "session.hpp"

namespace bayesbinn::inference {

void Session::prepare(const std::vector<size_t> &slot_bytes, size_t batch, size_t scratch_bytes, int threads) {
    if (batch > capacity_) {
        capacity_ = 0;
        slots.clear();  // before allocating the larger ones, so that both never exist at once
        Buffers made;
        for (size_t bytes : slot_bytes) made.emplace_back(bytes * batch);
        slots = std::move(made);
        capacity_ = batch;
    }
    if (team) return;
    Buffers made = scratch_for(threads, scratch_bytes);
    auto started = std::make_unique<Team>((int)made.size());
    made.resize((size_t)started->threads());
    scratch = std::move(made);
    team = std::move(started);
}

}  // namespace bayesbinn::inference
