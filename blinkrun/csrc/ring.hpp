// A ring of pieces in shared memory: several ranks append to it, and each reader reads all of it.
//
// The lock dies with its holder, and a piece is there, for all readers at once, when `end` has moved
// past it: a holder that died has changed nothing that counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "control.hpp"
#include "waiting.hpp"

namespace blinkrun {

struct PieceHead {  // pieces are multiples of its size
  enum : uint8_t { kFirst = 1, kLast = 2, kUrgent = 4 };  // of a message; it wakes all
  uint32_t bytes;
  uint16_t rank;  // who sends it
  uint8_t flags;
  uint8_t unused;
};
static_assert(sizeof(PieceHead) == 8 && kJournalBytes % sizeof(PieceHead) == 0, "a head is never cut");

class Ring {
 public:
  using Check = std::function<void()>;  // throws where nothing may be appended any more
  enum class Added { kNoRoom, kYes, kCrowded };  // it is more than half full
  static constexpr size_t kPiece = kJournalBytes / 4 - sizeof(PieceHead);  // most bytes of one

  // `reads` says how far each reader is; `rank` is the one that appends here, on its host.
  Ring(JournalControl& shared, std::vector<std::atomic<uint64_t>*> reads, uint32_t rank,
       WaitConfig wait, Waiter& waiter)
      : shared_(shared), reads_(std::move(reads)), rank_(rank), wait_(wait), waiter_(waiter) {}

  Added append(const PieceHead& head, const char* data, const Caller& caller, const Check& check);
  void finish();  // return when no thread of this rank is about to append

  uint64_t end() const { return shared_.end.load(std::memory_order_seq_cst); }
  uint64_t lag(size_t reader) const;
  bool has_room() const;  // for a large piece, if nobody else takes it
  void copy(uint64_t at, char* to, size_t bytes) const;
  PieceHead head_at(uint64_t at) const;
  static uint64_t room_of(const PieceHead& head);
  BellLine& room() { return shared_.room; }

 private:
  class Hold;
  void write(uint64_t at, const void* data, size_t bytes);
  void scan();

  JournalControl& shared_;
  std::vector<std::atomic<uint64_t>*> reads_;
  uint32_t rank_;
  WaitConfig wait_;
  Waiter& waiter_;
  std::mutex mutex_;  // held with the shared lock
};

}  // namespace blinkrun
