// Messages of a rank with one other, in one direction, that a call carries out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "waiting.hpp"

namespace blinkrun {

// One message to send to a peer or to receive from it.
struct Transfer {
  bool sends;
  uint32_t peer;
  int64_t tag;
  char* data;
  size_t bytes;
};

// The transfers with one peer in one direction, and how far they are.
class Lane {
 public:
  // `peer` as a `Waiter` counts.
  Lane(uint32_t peer, Waiter& waiter) : peer_(peer), waiter_(waiter) {}
  virtual ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void add(const Transfer& transfer) { waiting_.push_back(transfer); }
  uint32_t peer() const { return peer_; }
  virtual bool done() const { return waiting_.empty(); }
  virtual bool ready() = 0;  // something can be done; only looks
  virtual bool step() = 0;   // do it; whether one of the transfers went on
  virtual std::string what() const = 0;
  virtual void fail_if_gone() = 0;

 protected:
  // "send of 8 bytes to rank 1, tag 0"
  std::string describe(const Transfer& t) const {
    return (t.sends ? "send of " : "recv of ") + std::to_string(t.bytes) +
           (t.sends ? " bytes to rank " : " bytes from rank ") + std::to_string(waiter_.name(peer_)) +
           ", tag " + std::to_string(t.tag);
  }
  Failure other_size(const Transfer& t, size_t sent, int me) const {
    const int peer = waiter_.name(peer_);
    return Failure{Failure::Kind::kMismatch,
                   "recv from rank " + std::to_string(peer) + ", tag " + std::to_string(t.tag) +
                       ": rank " + std::to_string(me) + " wants " + std::to_string(t.bytes) +
                       " bytes, rank " + std::to_string(peer) + " sent " + std::to_string(sent) +
                       "; both must give the same size",
                   {me, peer}};
  }

  const uint32_t peer_;
  Waiter& waiter_;
  std::deque<Transfer> waiting_;  // not begun, but for the first
};

}  // namespace blinkrun
