// One rank's end of the journal: messages of all ranks, which every rank reads in the same order.
//
// A message is appended to a ring of the host (ring.hpp), and is there for all its ranks at once. A
// large one goes in pieces, which readers put together; its place in the order is that of its last
// piece. The ring's room is what the slowest reader leaves, so every wait of a rank, here or in a
// collective, takes what lies there into the rank's own memory: nobody waits for a rank that itself
// waits for others.
//
// In a job on several hosts posts go to a second ring, from which a thread of the host's first rank
// takes them (relay.hpp): it puts the posts of all hosts into the ring that the ranks read.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "control.hpp"
#include "ring.hpp"
#include "waiting.hpp"

namespace blinkrun {

class Network;
class Relay;

struct Message {
  uint32_t rank;
  std::string text;
};

class Journal {
 public:
  // `network`: null in a job on one host; else senders are numbered among all ranks.
  Journal(Control control, uint32_t rank, WaitConfig wait, Waiter& waiter, Network* network = nullptr);
  ~Journal();

  // Append a message; an urgent one also ends `sleep` on all ranks. Waits for room. Throws Failure.
  void post(const char* data, size_t bytes, bool urgent, const Caller& caller);
  std::vector<Message> read();  // what this rank has not read yet; never waits
  // Whether there is something to read, at the latest after `timeout_ns`. Throws Failure.
  bool wait(uint64_t timeout_ns, const Caller& caller);
  // Whether an urgent post, `kick` or a ring that is half full ended it. Throws Failure.
  bool sleep(uint64_t timeout_ns, const Caller& caller);
  void kick();     // end this rank's sleep, now or the next one
  void relieve();  // make room if others may soon wait for it
  // What else to relieve whenever this is relieved. To be set before the first call.
  void relieve_also(std::function<void()> other) { also_ = std::move(other); }
  void close();    // this rank posts and reads no more

  // Let posts go between hosts, if this is the host's first rank and there are several hosts.
  void start_relay();
  void stop_relay();  // it calls MPI no more

 private:
  struct Patience {
    uint32_t spins;
    uint64_t yield_ns, nap_ns, timeout_ns;
  };

  template <class Ready>
  bool until(Ready ready, BellLine& line, const Patience& patience, const Caller& caller);
  void append(const PieceHead& head, const char* data, const Caller& caller);
  bool deliver(const PieceHead& head, const char* data, const Caller& caller, const Ring::Check& check);
  void wait_for_room(const Caller& caller);
  void wait_for_relay(const Caller& caller);
  void check_over() const;
  void take();
  void pull();
  bool any_unread();
  std::vector<uint32_t> in_the_way();
  RankControl& me() const { return control_.ranks[rank_]; }

  friend class Relay;

  Control control_;
  uint32_t rank_, size_;     // on this host
  WaitConfig wait_;
  Waiter& waiter_;
  Network* network_;
  Ring ring_;
  std::unique_ptr<Ring> outgoing_;
  std::unique_ptr<Relay> relay_;
  Ring::Check check_;        // throws when this rank has left, or the job was aborted
  std::mutex post_mutex_;    // one message of this rank after the other
  std::mutex inbox_mutex_;
  std::vector<Message> inbox_;
  std::vector<std::string> parts_;  // by sender: the pieces of a message that is not complete
  std::atomic<size_t> unread_{0};
  std::atomic<uint32_t> alarms_seen_{0};
  std::function<void()> also_;
  std::atomic<bool> closed_{false};
};

}  // namespace blinkrun
