// A policy that also notes when each channel moved its first and its last bytes.
#pragma once

#include <algorithm>
#include <vector>

#include "group.hpp"
#include "interpreter.hpp"

namespace blinkrun {

template <class Policy> class Traced : public Policy {
 public:
  Traced(Group& group, const Program& program, const Call& call)
      : Policy(group, program, call), times_(program.channels.size()) {
    for (size_t c = 0; c < times_.size(); ++c)
      times_[c] = {program.channels[c].start, program.channels[c].stop, 0, 0};
  }

  Went reduce(const Step& step, ChannelState& state) {
    ChannelTimes& times = times_[size_t(state.channel - Policy::program_.channels.data())];
    const uint64_t before = now_ns();
    const Went went = Policy::reduce(step, state);
    if (went == Went::kHeld) return went;
    if (!times.first_ns) times.first_ns = before;
    times.last_ns = now_ns();
    return went;
  }

  void finish() {
    Policy::finish();
    auto still = [](const ChannelTimes& times) { return !times.first_ns; };
    times_.erase(std::remove_if(times_.begin(), times_.end(), still), times_.end());
    std::lock_guard<std::mutex> lock(Policy::group_.trace_mutex_);
    Policy::group_.last_channels_ = std::move(times_);
  }

 private:
  std::vector<ChannelTimes> times_;  // by channel; no time: it moved nothing
};

}  // namespace blinkrun
