// The control flow of a program: channels that advance as far as their waits allow, in turns.
//
// The policy says what the steps mean on a device:
//   bool ready(const Step&, const ChannelState&)   may the step that holds a channel go on?
//   bool pass(const Step& wait, ChannelState&)     the same, and go on
//   Went reduce(const Step&, ChannelState&)        move one chunk, or a part of it, or nothing yet
//   void signal(const Step&, ChannelState&)        publish it
//   bool message(const Step&, ChannelState&)       where it has kMessages: start one, or whether it is through
//   void relax()                                   between two looks
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "program.hpp"

namespace blinkrun {

// The elements that a channel covers, and how they are cut: in chunks of `chunk_elements`, but the
// first lacks `skip`, and the last is what remains.
struct Range {
  uint64_t lo, hi, chunk_elements, skip;
  uint64_t num_chunks() const {
    return hi == lo ? 0 : (hi - lo + skip + chunk_elements - 1) / chunk_elements;
  }
  uint64_t start(uint64_t chunk) const { return chunk ? lo + chunk * chunk_elements - skip : lo; }
  uint64_t stop(uint64_t chunk) const { return std::min(hi, lo + (chunk + 1) * chunk_elements - skip); }
};

struct ChannelState {
  const Channel* channel;
  Range range;
  uint64_t chunk;
  uint64_t num_chunks;
  uint32_t step;
  bool done() const { return chunk == num_chunks; }
};

enum class Went { kHeld, kPart, kWhole };

template <class Policy> class Interpreter {
 public:
  // `patience`: looks at the wait of a channel that has fallen behind before others go on. Where
  // every rank has a core, keeping channels close together keeps their chunks in the cache.
  Interpreter(const Program& program, Policy& policy, uint32_t patience)
      : program_(program), policy_(policy), patience_(patience) {}

  // Advance until a step holds the channel or one chunk is through; true if anything was done.
  bool advance(ChannelState& state) {
    bool moved = false;
    const Step* steps = program_.steps.data() + state.channel->first_step;
    while (state.step < state.channel->num_steps) {
      const Step& step = steps[state.step];
      if (step.kind == StepKind::kWait) {
        if (!policy_.pass(step, state)) return moved;
      } else if (step.kind == StepKind::kReduce) {
        const Went went = policy_.reduce(step, state);
        if (went != Went::kWhole) return moved || went == Went::kPart;
      } else if (step.kind == StepKind::kSignal) {
        policy_.signal(step, state);
      } else if constexpr (Policy::kMessages) {
        if (!policy_.message(step, state)) return moved;
      }
      ++state.step;
      moved = true;
    }
    state.step = 0;
    ++state.chunk;
    return true;
  }

  // One turn over all channels. Returns whether any moved; drops those that are through.
  bool turn(std::vector<ChannelState>& states) {
    bool moved = false;
    uint64_t lead = 0;
    for (size_t i = 0; i < states.size();) {
      lead = std::max(lead, states[i].chunk);
      bool went = advance(states[i]);
      if (!went && lead >= states[i].chunk + kLag && wait_a_little(states[i]))
        went = advance(states[i]);
      moved |= went;
      if (states[i].done()) {
        states.erase(states.begin() + long(i));
        moved = true;
      } else {
        ++i;
      }
    }
    return moved;
  }

  // The step that holds a channel (it must be held by one).
  const Step& held_by(const ChannelState& state) const {
    return program_.steps[state.channel->first_step + state.step];
  }

 private:
  static constexpr uint64_t kLag = 2;  // chunks that a channel may be behind

  bool wait_a_little(const ChannelState& state) {
    const Step& step = held_by(state);
    for (uint32_t i = 0; i < patience_; ++i) {
      if (policy_.ready(step, state)) return true;
      policy_.relax();
    }
    return false;
  }

  const Program& program_;
  Policy& policy_;
  uint32_t patience_;
};

}  // namespace blinkrun
