// How a group runs the channels of a program, whatever its steps mean.
#pragma once

#include <algorithm>
#include <vector>

#include "group.hpp"
#include "interpreter.hpp"
#include "traced.hpp"

namespace blinkrun {

template <class Policy>
void Group::run_program(const Program& program, const Call& call, const Caller& caller) {
  if (!traced_) return run_channels<Policy>(program, call, caller);
  run_channels<Traced<Policy>>(program, call, caller);
}

template <class Policy>
void Group::run_channels(const Program& program, const Call& call, const Caller& caller) {
  Policy policy(*this, program, call);
  const WaitConfig wait = policy.wait_config(caller.may_spin);
  const uint32_t patience = std::min(wait.spins, 200u);
  Interpreter<Policy> interpreter(program, policy, patience);
  std::vector<ChannelState> states;
  states.reserve(program.channels.size());
  for (const Channel& channel : program.channels) {
    const Range range = policy.range(channel);
    if (range.num_chunks()) states.push_back({&channel, range, 0, range.num_chunks(), 0});
  }
  bool told = false;
  auto look = [&] { look_around(caller); };
  auto ready = [&] {
    policy.progress();
    for (const ChannelState& s : states) {
      if (policy.ready(interpreter.held_by(s), s)) return true;
    }
    return states.empty() && !policy.busy();
  };
  auto missing = [&] {
    std::vector<uint32_t> ranks;
    for (const ChannelState& s : states) {
      const Step& step = interpreter.held_by(s);
      if (step.kind == StepKind::kWait && !policy.ready(step, s)) ranks.push_back(uint32_t(step.rank));
    }
    policy.missing(ranks);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  };
  while (!states.empty() || policy.busy()) {
    policy.progress();
    if (interpreter.turn(states)) continue;
    uint32_t looks = patience;
    while (looks && !ready()) {
      cpu_relax();
      --looks;
    }
    if (looks) continue;
    if (!told) caller.on_block();
    told = true;
    waiter_.wait(wait, ready, missing, [&] { return call_text(call); }, look,
                 [&] { return policy.nap_ns(states); });
  }
  policy.finish();
}

}  // namespace blinkrun
