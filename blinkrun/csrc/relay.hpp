// Carries the posts of a host's ranks to the other hosts, and what is posted there to its own ranks.
//
// It belongs to the host's first rank and works in a thread of its own, which sleeps most of the
// time; a thread of that rank that waits for the journal helps. `Rounds` says what to do.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "control.hpp"
#include "journal.hpp"
#include "mpi.hpp"
#include "network.hpp"
#include "rounds.hpp"

namespace blinkrun {

class Relay {
 public:
  Relay(Journal& journal, OutgoingControl& outgoing, Network& network, Waiter& waiter);
  ~Relay() { stop(); }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  void help();  // do what there is to do now, unless another thread does
  void stop();  // end the thread; MPI is called no more

 private:
  static constexpr size_t kBatch = kJournalBytes / 4;  // most bytes: the largest piece
  struct Peer {
    uint32_t leader;
    std::vector<char> buffer;
    Messages::Id receiving;
  };
  struct Sent {
    Messages::Id id;
    Batch batch;
  };

  void serve();
  void sleep(uint64_t quiet_ns);
  bool turn();
  bool receive();
  void forget_sent();
  bool send();
  bool deliver();
  Batch next_batch();
  void check_late(uint64_t now);
  bool has_data() const {
    return outgoing_.journal.end.load(std::memory_order_seq_cst) !=
           outgoing_.read.load(std::memory_order_relaxed);
  }

  Journal& journal_;
  OutgoingControl& outgoing_;
  Network& network_;
  Waiter& waiter_;
  Messages messages_;
  Rounds rounds_;
  std::vector<Peer> peers_;      // by host; of the own one nothing is used
  std::deque<Sent> sent_;        // whose memory MPI may still read
  std::deque<Batch> delivering_;  // complete, and not all in the ring yet
  size_t delivered_ = 0;         // bytes of the first of them
  uint64_t moved_ns_;            // when anything happened last
  uint64_t looked_ns_ = 0;
  std::atomic<bool> may_send_{false};  // if somebody posts something
  std::mutex turn_mutex_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace blinkrun
