// What the steps of a program mean on an emulated machine: the same, in the machine's time.
#pragma once

#include <algorithm>
#include <vector>

#include "pacing.hpp"
#include "policy.hpp"

namespace blinkrun {

class PacedPolicy : public CallPolicy {
 public:
  PacedPolicy(Group& group, const Program& program, const Call& call)
      : CallPolicy(group, program, call), pacer_(*group.pacer_),
        piece_(std::max<uint64_t>(pacer_.piece_bytes() / item_, 1)) {
    for (uint32_t r = 0; r < group.config_.size; ++r)
      start_ns_ = std::max(start_ns_, group.control_.ranks[r].post[group.seq_ & 1].start_ns);
    end_ns_ = start_ns_;
  }

  bool ready(const Step& step, const ChannelState& state) const {
    if (step.kind == StepKind::kReduce) return now_ns() >= state.due_ns;
    return CallPolicy::ready(step, state);
  }

  bool pass(const Step& wait, ChannelState& state) const {
    if (!CallPolicy::ready(wait, state)) return false;
    const uint64_t need = state.chunk + 1;
    if (need > uint64_t(wait.lag)) {
      const auto& times = flag_of(wait).time_ns;
      const uint64_t count = need - uint64_t(wait.lag);
      state.time_ns = std::max(state.time_ns, times[count % kTimes].load(std::memory_order_relaxed));
    }
    return true;
  }

  void signal(const Step& step, const ChannelState& state) {
    Flag& flag = group_.control_.flag(group_.config_.rank, uint32_t(step.flag));
    flag.time_ns[(state.chunk + 1) % kTimes].store(state.time_ns, std::memory_order_relaxed);
    CallPolicy::signal(step, state);
    end_ns_ = std::max(end_ns_, state.time_ns);
  }

  // Piece by piece: reserved when the one before it has been moved, moved when it is due.
  Went reduce(const Step& step, ChannelState& state) {
    if (!step.linked) return CallPolicy::reduce(step, state);
    const uint64_t lo = state.range.start(state.chunk), hi = state.range.stop(state.chunk);
    if (!state.due_ns) reserve(step, state, hi - lo);
    if (now_ns() < state.due_ns) return Went::kHeld;
    const uint64_t stop = std::min(hi - lo, state.moved + piece_);
    move(step, state.chunk, lo, lo + stop, state.moved);
    state.time_ns = state.due_ns;
    state.due_ns = 0;
    state.moved = stop;
    if (stop < hi - lo) {
      reserve(step, state, hi - lo);
      return Went::kPart;  // the other channels' turn, even where the next is due at once
    }
    state.moved = 0;
    end_ns_ = std::max(end_ns_, state.time_ns);
    return Went::kWhole;
  }

  static WaitConfig wait_config(bool) { return {0, 0}; }  // a paced rank sleeps
  uint64_t start_ns() const { return start_ns_; }

  // Until the first step is due.
  static uint64_t nap_ns(const std::vector<ChannelState>& states) {
    const uint64_t now = now_ns();
    uint64_t nap = Waiter::kLook;
    for (const ChannelState& s : states)
      if (s.due_ns) nap = std::min(nap, s.due_ns > now ? s.due_ns - now : 0);
    return nap;
  }

  void finish() { group_.last_paced_ns_.store(end_ns_ - start_ns_, std::memory_order_relaxed); }

 private:
  void reserve(const Step& step, ChannelState& state, uint64_t elements) {
    const uint64_t bytes = std::min(piece_, elements - state.moved) * item_;
    state.due_ns = pacer_.reserve(program_.operands.data() + step.first,
                                  step.num_dsts + step.num_srcs, state.time_ns, bytes);
  }

  Pacer& pacer_;
  uint64_t piece_;  // elements
  uint64_t start_ns_ = 0;
  uint64_t end_ns_ = 0;
};

}  // namespace blinkrun
