// One rank's end of the journal: messages of all ranks, which every rank reads in the same order.
//
// A message is appended under a lock that dies with its holder, and is there for all at once, when
// `end` has moved past it. A large one goes in pieces, which readers put together; its place in the
// order is that of its last piece. The ring's room is what the slowest reader leaves, so every
// wait of a rank, here or in a collective, takes what lies there into the rank's own memory:
// nobody waits for a rank that itself waits for others.
#pragma once

#include <functional>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "control.hpp"
#include "waiting.hpp"

namespace blinkrun {

struct Message {
  uint32_t rank;
  std::string text;
};

class Journal {
 public:
  Journal(Control control, uint32_t rank, WaitConfig wait, Waiter& waiter);

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

 private:
  class Hold;
  struct Head {  // of a piece; pieces are multiples of its size
    uint32_t bytes;
    uint16_t rank;
    bool first, last;
  };
  static_assert(sizeof(Head) == 8 && kJournalBytes % sizeof(Head) == 0, "a head is never cut");
  static constexpr size_t kPiece = kJournalBytes / 4 - sizeof(Head);
  struct Patience {
    uint32_t spins;
    uint64_t yield_ns, nap_ns, timeout_ns;
  };

  template <class Ready>
  bool until(Ready ready, BellLine& line, const Patience& patience, const Caller& caller);
  bool append(const Head& head, const char* data, const Caller& caller);
  void wait_for_room(const Caller& caller);
  void check_over() const;
  void scan();
  void write(uint64_t at, const void* data, size_t bytes);
  void copy(uint64_t at, char* to, size_t bytes) const;
  void take();
  void pull();
  bool any_unread();
  uint64_t lag(uint32_t rank) const;
  std::vector<uint32_t> in_the_way();
  RankControl& me() const { return control_.ranks[rank_]; }

  Control control_;
  JournalControl& shared_;
  uint32_t rank_, size_;
  WaitConfig wait_;
  Waiter& waiter_;
  std::mutex post_mutex_;    // one message of this rank after the other
  std::mutex append_mutex_;  // held with the shared lock: `close` lets its holder finish
  std::mutex inbox_mutex_;
  std::vector<Message> inbox_;
  std::vector<std::string> parts_;  // by rank: the pieces of a message that is not complete
  std::atomic<size_t> unread_{0};
  std::atomic<uint32_t> alarms_seen_{0};
  std::function<void()> also_;
  std::atomic<bool> closed_{false};
};

}  // namespace blinkrun
