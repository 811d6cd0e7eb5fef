#include "ring.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>

namespace blinkrun {

namespace {

// Looks before yielding. Yielding costs an answer less than a microsecond; but where a third process
// has the other rank's core, the ranks share one, and looking longer made an answer take 50 us.
constexpr uint32_t kLooks = 300;
constexpr uint64_t kNap = 50'000;  // between two looks at a lock that is held

void nap() {
  timespec t{0, long(kNap)};
  nanosleep(&t, nullptr);
}

}  // namespace

// The ring is this rank's to write while it lives: a microsecond. A holder that died has changed
// nothing that counts, so the next one takes it over.
class Ring::Hold {
 public:
  Hold(Ring& ring, const Caller& caller, const Check& check)
      : mine_(ring.mutex_), held_(ring.shared_.held) {
    const uint32_t wanted = ring.rank_ + 1;
    const uint32_t looks = caller.may_spin ? std::min(ring.wait_.spins, kLooks) : 0;
    uint64_t start = 0, looked = 0;
    for (uint32_t i = 0;; ++i) {
      if (i % 16 == 0) check();
      uint32_t holder = 0;
      if (held_.compare_exchange_strong(holder, wanted, std::memory_order_acquire)) return;
      if (i < looks) {
        cpu_relax();
        continue;
      }
      caller.on_block();
      const uint64_t now = now_ns();
      if (!start) start = looked = now;
      if (now - start < ring.wait_.yield_ns) {
        sched_yield();
        continue;
      }
      nap();
      if (now - looked < Waiter::kLook) continue;
      looked = now;
      if (ring.waiter_.is_gone(holder - 1) &&
          held_.compare_exchange_strong(holder, wanted, std::memory_order_acquire))
        return;
      check();
      if (now - start > ring.waiter_.timeout_ns()) ring.waiter_.fail_late({holder - 1}, "the journal");
    }
  }
  ~Hold() { held_.store(0, std::memory_order_release); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  std::lock_guard<std::mutex> mine_;
  std::atomic<uint32_t>& held_;
};

uint64_t Ring::room_of(const PieceHead& head) {
  constexpr uint64_t unit = sizeof(PieceHead);
  return unit + (head.bytes + unit - 1) / unit * unit;
}

Ring::Added Ring::append(const PieceHead& head, const char* data, const Caller& caller,
                         const Check& check) {
  Hold hold(*this, caller, check);
  const uint64_t at = shared_.end.load(std::memory_order_relaxed);
  const uint64_t end = at + room_of(head);
  if (end - shared_.slowest > kJournalBytes / 2) scan();
  if (end - shared_.slowest > kJournalBytes) return Added::kNoRoom;
  write(at, &head, sizeof head);
  write(at + sizeof head, data, head.bytes);
  shared_.end.exchange(end, std::memory_order_seq_cst);
  return end - shared_.slowest > kJournalBytes / 2 ? Added::kCrowded : Added::kYes;
}

void Ring::finish() { std::lock_guard<std::mutex> lock(mutex_); }

// Find how far the slowest reader is; a holder's work.
void Ring::scan() {
  uint64_t slowest = shared_.end.load(std::memory_order_relaxed);
  for (const auto* read : reads_) slowest = std::min(slowest, read->load(std::memory_order_acquire));
  shared_.slowest = slowest;
}

uint64_t Ring::lag(size_t reader) const {
  const uint64_t read = reads_[reader]->load(std::memory_order_seq_cst);
  const uint64_t end = shared_.end.load(std::memory_order_seq_cst);
  return read < end ? end - read : 0;  // 0 for one that reads no more
}

bool Ring::has_room() const {
  for (size_t reader = 0; reader < reads_.size(); ++reader)
    if (lag(reader) > kJournalBytes / 2) return false;
  return true;
}

void Ring::write(uint64_t at, const void* data, size_t bytes) {
  const size_t offset = at % kJournalBytes, first = std::min(bytes, size_t(kJournalBytes) - offset);
  if (first) std::memcpy(shared_.ring + offset, data, first);
  if (bytes > first)
    std::memcpy(shared_.ring, static_cast<const char*>(data) + first, bytes - first);
}

void Ring::copy(uint64_t at, char* to, size_t bytes) const {
  const size_t offset = at % kJournalBytes, first = std::min(bytes, size_t(kJournalBytes) - offset);
  if (first) std::memcpy(to, shared_.ring + offset, first);
  if (bytes > first) std::memcpy(to + first, shared_.ring, bytes - first);
}

PieceHead Ring::head_at(uint64_t at) const {
  PieceHead head;
  copy(at, reinterpret_cast<char*>(&head), sizeof head);
  return head;
}

}  // namespace blinkrun
