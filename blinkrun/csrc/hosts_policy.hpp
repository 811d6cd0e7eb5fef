// What the steps of a program over several hosts mean: in memory as ever, between hosts by messages.
#pragma once

#include <algorithm>
#include <vector>

#include "network.hpp"
#include "policy.hpp"

namespace blinkrun {

// Chunks go by streams of messages.
class StreamPolicy : public CallPolicy {
 public:
  static constexpr bool kMessages = true;

  StreamPolicy(Group& group, const Program& program, const Call& call)
      : CallPolicy(group, program, call), network_(*group.network_),
        messages_(network_.messages()), streams_(program.streams.size()) {}

  void progress() {
    if (!network_.progress()) return;
    for (Flow& flow : streams_) {
      while (flow.first < flow.pieces.size() && messages_.finish(flow.pieces[flow.first].id))
        flow.through += flow.pieces[flow.first++].is_last;
    }
  }

  bool ready(const Step& step, const ChannelState& state) const {
    if (step.kind == StepKind::kWait) return CallPolicy::ready(step, state);
    const uint64_t need = state.chunk + 1;
    return need <= uint64_t(step.lag) ||
           streams_[size_t(step.flag)].through >= need - uint64_t(step.lag);
  }

  bool message(const Step& step, const ChannelState& state) {
    if (step.kind == StepKind::kSent || step.kind == StepKind::kArrived) return ready(step, state);
    start(step, state);
    return true;
  }

  bool busy() const {
    return std::any_of(streams_.begin(), streams_.end(), [](const Flow& f) { return f.busy(); });
  }

  void missing(std::vector<uint32_t>& ranks) const {
    for (size_t s = 0; s < streams_.size(); ++s)
      if (streams_[s].busy()) ranks.push_back(network_.place(program_.streams[s].rank));
  }

  WaitConfig wait_config(bool may_spin) const {
    return Network::wait_config(group_.config_.wait, may_spin);
  }
  // A rank without messages is woken by its neighbours.
  uint64_t nap_ns(const std::vector<ChannelState>&) const {
    return busy() ? network_.nap_ns() : Waiter::kLook;
  }

 private:
  struct Piece {  // of a chunk, each a message
    Messages::Id id;
    bool is_last;
  };
  struct Flow {
    std::vector<Piece> pieces;
    size_t first = 0;      // that is not through
    uint64_t through = 0;  // chunks
    bool busy() const { return first < pieces.size(); }
  };

  void start(const Step& step, const ChannelState& state) {
    const Stream& stream = program_.streams[size_t(step.flag)];
    const uint64_t lo = state.range.start(state.chunk), hi = state.range.stop(state.chunk);
    char* at = address(program_.operands[step.first], lo, state.chunk);
    const int tag = kStreamTag + int(stream.number);
    const size_t most = messages_.piece_bytes();
    for (size_t left = (hi - lo) * item_; left;) {
      const size_t bytes = std::min(left, most);
      const Messages::Id id = stream.sends ? messages_.send(at, bytes, stream.rank, tag)
                                           : messages_.recv(at, bytes, stream.rank, tag);
      at += bytes;
      left -= bytes;
      streams_[size_t(step.flag)].pieces.push_back({id, left == 0});
    }
  }

  Network& network_;
  Messages& messages_;
  std::vector<Flow> streams_;
};

// One chunk, between the first ranks of all hosts, with what is called before it.
class EagerPolicy : public CallPolicy {
 public:
  static constexpr bool kMessages = true;

  EagerPolicy(Group& group, const Program& program, const Call& call)
      : CallPolicy(group, program, call), network_(*group.network_), entry_(network_.entry()),
        ends_(program.streams.size()) {}

  void progress() {
    if (!ends_.empty()) network_.progress();
  }

  bool ready(const Step& step, const ChannelState& state) const {
    if (step.kind == StepKind::kWait) return CallPolicy::ready(step, state);
    if (step.kind == StepKind::kSent) return entry_.sent(host_of(step));
    return ends_[size_t(step.flag)].taken || entry_.come(host_of(step));
  }

  bool message(const Step& step, const ChannelState& state) {
    End& end = ends_[size_t(step.flag)];
    if (step.kind == StepKind::kSend || step.kind == StepKind::kRecv) {
      end.memory = address(program_.operands[step.first], state.range.lo, 0);
      end.bytes = (state.range.hi - state.range.lo) * item_;
      if (step.kind == StepKind::kSend) entry_.send(host_of(step), end.memory - kCacheLine, end.bytes);
      return true;
    }
    if (!ready(step, state)) return false;
    if (step.kind == StepKind::kSent || end.taken) return true;
    std::memcpy(end.memory, entry_.take(host_of(step)), end.bytes);
    entry_.done(host_of(step));
    end.taken = true;
    return true;
  }

  bool busy() const {
    for (size_t s = 0; s < ends_.size(); ++s)
      if (is_open(s)) return true;
    return false;
  }

  void missing(std::vector<uint32_t>& ranks) const {
    for (size_t s = 0; s < ends_.size(); ++s) {
      if (!is_open(s)) continue;  // else the first rank may itself wait for any of its host
      for (uint32_t rank : network_.hosts().ranks(network_.hosts().host_of(program_.streams[s].rank)))
        ranks.push_back(network_.place(rank));
    }
  }

  WaitConfig wait_config(bool may_spin) const {
    return Network::wait_config(group_.config_.wait, may_spin);
  }
  uint64_t nap_ns(const std::vector<ChannelState>&) const {
    return ends_.empty() ? Waiter::kLook : network_.nap_ns();
  }

 private:
  struct End {
    char* memory = nullptr;
    size_t bytes = 0;
    bool taken = false;
  };
  uint32_t host_of(const Step& step) const { return network_.hosts().host_of(uint32_t(step.rank)); }
  bool is_open(size_t s) const {
    const Stream& stream = program_.streams[s];
    if (!ends_[s].memory) return false;
    return stream.sends ? !entry_.sent(network_.hosts().host_of(stream.rank)) : !ends_[s].taken;
  }

  Network& network_;
  Entry& entry_;
  std::vector<End> ends_;
};

}  // namespace blinkrun
