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
      : CallPolicy(group, program, call), pacer_(*group.pacer_), charged_(program.steps.size()),
        flows_(program.channels.size()) {
    for (uint32_t r = 0; r < group.config_.size; ++r)
      start_ns_ = std::max(start_ns_, group.control_.ranks[r].post[group.seq_ & 1].start_ns);
    end_ns_ = start_ns_;
    size_t most = 0;
    for (size_t s = 0; s < program.steps.size(); ++s) {
      charged_[s] = resources_of(program.steps[s]);
      most = std::max(most, charged_[s].size());
    }
    for (Flow& flow : flows_) {
      flow.time_ns = start_ns_;
      flow.times_ns.resize(most);
    }
  }

  bool ready(const Step& step, const ChannelState& state) const {
    if (step.kind == StepKind::kReduce) return now_ns() >= flow_of(state).due_ns[0];
    return CallPolicy::ready(step, state);
  }

  bool pass(const Step& wait, ChannelState& state) {
    if (!CallPolicy::ready(wait, state)) return false;
    if (state.chunk + 1 <= uint64_t(wait.lag)) return true;
    const auto& time_ns = group_.control_.time_ns(uint32_t(wait.rank), uint32_t(wait.flag),
                                                  state.chunk + 1 - uint64_t(wait.lag));
    Flow& flow = flow_of(state);
    flow.time_ns = std::max(flow.time_ns, time_ns.load(std::memory_order_relaxed));
    return true;
  }

  void signal(const Step& step, const ChannelState& state) {
    auto& time_ns =
        group_.control_.time_ns(group_.config_.rank, uint32_t(step.flag), state.chunk + 1);
    time_ns.store(flow_of(state).time_ns, std::memory_order_relaxed);
    CallPolicy::signal(step, state);
  }

  // Piece by piece, moved when it is due. The next is reserved before: while a piece waits for its
  // turn at one resource, the others must not idle.
  Went reduce(const Step& step, ChannelState& state) {
    if (!step.linked) return CallPolicy::reduce(step, state);
    Flow& flow = flow_of(state);
    if (!flow.elements) begin(step, state, flow);
    if (now_ns() < flow.due_ns[0]) return Went::kHeld;
    const uint64_t lo = state.range.start(state.chunk);
    const uint64_t stop = std::min(flow.elements, flow.moved + flow.piece);
    move(step, state.chunk, lo, lo + stop, flow.moved);
    flow.moved = stop;
    flow.time_ns = flow.due_ns[0];
    flow.due_ns[0] = flow.due_ns[1];
    flow.due_ns[1] = 0;
    if (stop < flow.elements) {
      reserve(step, flow);
      return Went::kPart;  // the other channels' turn, even where the next is due at once
    }
    flow.elements = 0;
    end_ns_ = std::max(end_ns_, flow.time_ns);
    return Went::kWhole;
  }

  static WaitConfig wait_config(bool) { return {0, 0}; }  // a paced rank sleeps

  // Until the first piece is due.
  uint64_t nap_ns(const std::vector<ChannelState>& states) const {
    const uint64_t now = now_ns();
    uint64_t nap = Waiter::kLook;
    for (const ChannelState& state : states) {
      const uint64_t due = flow_of(state).due_ns[0];
      if (due) nap = std::min(nap, due > now ? due - now : 0);
    }
    return nap;
  }

  void finish() {
    group_.last_paced_ns_.store(end_ns_ - start_ns_, std::memory_order_relaxed);
    group_.last_ns_.store(now_ns() - start_ns_, std::memory_order_relaxed);
  }

 private:
  // Where a channel is on the emulated machine.
  struct Flow {
    uint64_t time_ns = 0;       // when all that it did was over
    uint64_t due_ns[2] = {};    // of the pieces that are under way; 0: none is
    uint64_t elements = 0;      // of the chunk under way; 0: none is
    uint64_t piece = 0, moved = 0, reserved = 0;  // elements
    std::vector<uint64_t> times_ns;  // until when it has each resource of the step under way
  };

  const Flow& flow_of(const ChannelState& state) const {
    return flows_[size_t(state.channel - program_.channels.data())];
  }
  Flow& flow_of(const ChannelState& state) {
    return flows_[size_t(state.channel - program_.channels.data())];
  }

  std::vector<uint32_t> resources_of(const Step& step) const {
    std::vector<uint32_t> all;
    for (uint32_t i = step.first; i < step.first + step.num_dsts + step.num_srcs; ++i) {
      if (!program_.operands[i].link) continue;
      const auto& some = pacer_.resources_of(program_.operands[i].link - 1);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  void begin(const Step& step, const ChannelState& state, Flow& flow) {
    flow.elements = state.range.stop(state.chunk) - state.range.start(state.chunk);
    const uint64_t most = std::max<uint64_t>(pacer_.piece_bytes() / item_, 1);
    const uint64_t pieces = (flow.elements + most - 1) / most;
    flow.piece = (flow.elements + pieces - 1) / pieces;
    flow.moved = flow.reserved = 0;
    std::fill(flow.times_ns.begin(), flow.times_ns.end(), flow.time_ns);
    reserve(step, flow);
    reserve(step, flow);
  }

  void reserve(const Step& step, Flow& flow) {
    const uint64_t elements = std::min(flow.piece, flow.elements - flow.reserved);
    if (!elements) return;
    const auto& resources = charged_[size_t(&step - program_.steps.data())];
    pacer_.reserve(resources, elements * item_, flow.times_ns.data());
    const auto end = flow.times_ns.begin() + long(resources.size());
    flow.due_ns[flow.due_ns[0] != 0] = *std::max_element(flow.times_ns.begin(), end);
    flow.reserved += elements;
  }

  Pacer& pacer_;
  std::vector<std::vector<uint32_t>> charged_;  // by step: resources of its links
  std::vector<Flow> flows_;                     // by channel
  uint64_t start_ns_ = 0;
  uint64_t end_ns_ = 0;
};

}  // namespace blinkrun
