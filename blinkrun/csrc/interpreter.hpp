// The turns of a core: channels that advance (steps.hpp) as far as their waits allow.
//
// To what `advance` asks of a policy this adds:
//   bool ready(const Step&, const ChannelState&)   may the step that holds a channel go on?
//   void relax()                                   between two looks
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "program.hpp"

namespace blinkrun {

template <class Policy> class Interpreter {
 public:
  // `patience`: looks at the wait of a channel that has fallen behind before others go on. Where
  // every rank has a core, keeping channels close together keeps their chunks in the cache.
  Interpreter(const Program& program, Policy& policy, uint32_t patience)
      : program_(program), policy_(policy), patience_(patience) {}

  // One turn over all channels. Returns whether any moved; drops those that are through.
  bool turn(std::vector<ChannelState>& states) {
    bool moved = false;
    uint64_t lead = 0;
    for (size_t i = 0; i < states.size();) {
      lead = std::max(lead, states[i].chunk);
      bool went = advance(program_.steps.data(), states[i], policy_);
      if (!went && lead >= states[i].chunk + kLag && wait_a_little(states[i]))
        went = advance(program_.steps.data(), states[i], policy_);
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
