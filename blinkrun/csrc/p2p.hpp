// Messages from one rank to another, beside the collectives: in any order, from any thread.
//
// For every ordered pair of ranks there is a pipe: a ring of bytes in the sender's arena, made with
// the first message, that one rank writes and one reads. A message is a head (tag, bytes) and its
// bytes, in pieces as there is room. One thread at a time writes to a pipe, and one reads it: it
// sets aside what is not for itself, where the others find it. All threads of a rank that have to
// wait do so at the rank's bell, which is rung when a pipe of the rank has moved. Between hosts the
// lanes are those of mail.hpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "arena.hpp"
#include "control.hpp"
#include "journal.hpp"
#include "lane.hpp"
#include "waiting.hpp"

namespace blinkrun {

class Mail;
class Network;

constexpr size_t kPipeRing = 256 << 10;

// What an arena holds between its scratch and its heap: the bell of its rank, then the pipes to the
// other ranks.
struct alignas(kCacheLine) Pipe {
  std::atomic<uint64_t> written;  // bytes ever; the sender's
  std::atomic<uint64_t> ring;     // where it lies in the sender's arena; 0: not made yet
  alignas(kCacheLine) std::atomic<uint64_t> read;  // bytes ever; the receiver's
};
static_assert(sizeof(BellLine) == kCacheLine && sizeof(Pipe) == 2 * kCacheLine);

class Pipes {
 public:
  Pipes(uint32_t rank, std::vector<Mapping>& arenas, Heap& heap, WaitConfig wait, Waiter& waiter,
        Journal& journal, Network* network = nullptr);
  ~Pipes();

  // Carry out all transfers together, in whatever order they can go on. Messages of one tag between
  // two ranks stay in order. Throws Failure; a message of another size than wanted is set aside, and
  // the other transfers are carried out first.
  void run(const std::vector<Transfer>& transfers, const Caller& caller);
  // Whether a message with this tag is there, complete. Waits for the rest of one that has begun.
  bool arrived(uint32_t src, int64_t tag, const Caller& caller);
  void close();  // nothing goes between hosts any more

 private:
  struct Head {
    int64_t tag;
    uint64_t bytes;
  };
  static_assert(sizeof(Head) == 16 && kPipeRing % sizeof(Head) == 0, "a head is never cut");
  struct Parcel {
    std::unique_ptr<char[]> data;
    size_t bytes;
  };
  struct Inbox {
    std::atomic<bool> busy{false};  // a thread reads the pipe
    std::mutex mutex;
    std::map<int64_t, std::deque<Parcel>> aside;
  };
  struct Outbox {
    std::atomic<bool> busy{false};  // a thread writes to the pipe
  };
  using Lanes = std::vector<std::unique_ptr<Lane>>;
  class Near;
  class SendLane;
  class RecvLane;

  BellLine& bell(uint32_t rank) const;
  Pipe& pipe(uint32_t src, uint32_t dst) const;
  char* ring(uint32_t src, const Pipe& pipe) const;
  void open(uint32_t dst);
  uint32_t check(uint32_t peer) const;
  Mail& mail();
  std::unique_ptr<Lane> lane(const Transfer& transfer, uint32_t place, std::optional<Failure>& mismatch);
  void wake(uint32_t rank) const;
  bool arrived_elsewhere(uint32_t src, int64_t tag, const Caller& caller);
  void wait(const Lanes& lanes, uint64_t since_ns, const Caller& caller);
  void look(const Lanes& lanes, uint64_t since_ns, const Caller& caller);

  uint32_t rank_, size_;
  std::vector<Mapping>& arenas_;
  Heap& heap_;
  WaitConfig wait_;
  Waiter& waiter_;
  Journal& journal_;
  Network* network_;
  std::unique_ptr<Mail> mail_;  // made with the first message to or from another host
  std::mutex open_mutex_;
  std::vector<Inbox> inboxes_;
  std::vector<Outbox> outboxes_;
};

}  // namespace blinkrun
