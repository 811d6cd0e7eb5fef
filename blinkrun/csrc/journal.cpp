#include "journal.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>

namespace blinkrun {

namespace {

// Looks before yielding. Yielding costs an answer less than a microsecond; but where a third process
// has the other rank's core, the ranks share one, and looking longer made an answer take 50 us.
constexpr uint32_t kLooks = 300;
constexpr uint64_t kNap = 50'000;             // between two looks at a lock that is held
constexpr uint64_t kLongNap = 1'000'000'000;  // of a rank that has nothing to offer

void nap() {
  timespec t{0, long(kNap)};
  nanosleep(&t, nullptr);
}

template <class T> constexpr uint64_t padded(uint64_t bytes) {
  return (bytes + sizeof(T) - 1) / sizeof(T) * sizeof(T);
}

// Ring a bell that counts even if nobody sleeps by it now.
void raise(BellLine& line) {
  line.bell.fetch_add(1, std::memory_order_seq_cst);
  if (line.asleep.load(std::memory_order_seq_cst)) futex_wake(line.bell);
}

}  // namespace

Journal::Journal(Control control, uint32_t rank, WaitConfig wait, Waiter& waiter)
    : control_(control), shared_(*control.journal), rank_(rank), size_(control.header->size),
      wait_(wait), waiter_(waiter), parts_(size_) {}

// The ring is this rank's to write while it lives: a microsecond. A holder that died has changed
// nothing that counts, so the next one takes it over.
class Journal::Hold {
 public:
  Hold(Journal& journal, const Caller& caller)
      : mine_(journal.append_mutex_), held_(journal.shared_.held) {
    const uint32_t wanted = journal.rank_ + 1;
    const uint32_t looks = caller.may_spin ? std::min(journal.wait_.spins, kLooks) : 0;
    uint64_t start = 0, looked = 0;
    for (uint32_t i = 0;; ++i) {
      if (journal.closed_) journal.check_over();
      uint32_t holder = 0;
      if (held_.compare_exchange_strong(holder, wanted, std::memory_order_acquire)) return;
      if (i < looks) {
        cpu_relax();
        continue;
      }
      caller.on_block();
      const uint64_t now = now_ns();
      if (!start) start = looked = now;
      if (now - start < journal.wait_.yield_ns) {
        sched_yield();
        continue;
      }
      nap();
      if (now - looked < Waiter::kLook) continue;
      looked = now;
      if (journal.waiter_.is_gone(holder - 1) &&
          held_.compare_exchange_strong(holder, wanted, std::memory_order_acquire))
        return;
      journal.check_over();
      if (now - start > journal.waiter_.timeout_ns())
        journal.waiter_.fail_late({holder - 1}, "the journal");
    }
  }
  ~Hold() { held_.store(0, std::memory_order_release); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  std::lock_guard<std::mutex> mine_;
  std::atomic<uint32_t>& held_;
};

template <class Ready>
bool Journal::until(Ready ready, BellLine& line, const Patience& patience, const Caller& caller) {
  for (uint32_t i = 0; i < patience.spins; ++i) {
    if (ready()) return true;
    cpu_relax();
  }
  if (ready()) return true;
  caller.on_block();
  const uint64_t start = now_ns();
  for (uint64_t looked = start;;) {
    check_over();
    if (ready()) return true;
    const uint64_t now = now_ns(), passed = now - start;
    if (now - looked >= std::min(patience.nap_ns, Waiter::kLook)) {
      looked = now;
      caller.on_look();
    }
    if (passed >= patience.timeout_ns) return false;
    if (passed < patience.yield_ns) {
      sched_yield();
      continue;
    }
    line.asleep.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t bell = line.bell.load(std::memory_order_seq_cst);
    const uint64_t nap_ns = std::min(patience.nap_ns, patience.timeout_ns - passed);
    if (!ready() && !closed_ && !waiter_.aborted() && futex_wait(line.bell, bell, nap_ns)) looked = 0;
    line.asleep.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void Journal::check_over() const {
  if (waiter_.aborted()) waiter_.throw_aborted();
  if (closed_)
    throw Failure{Failure::Kind::kClosed,
                  "rank " + std::to_string(waiter_.name(rank_)) + " has left the job", {}};
}

void Journal::post(const char* data, size_t bytes, bool urgent, const Caller& caller) {
  check_over();
  std::unique_lock<std::mutex> turn(post_mutex_, std::try_to_lock);
  if (!turn.owns_lock()) {
    caller.on_block();
    for (uint64_t looked = now_ns(); !turn.try_lock();) {  // not lock(): signals must be looked at
      nap();
      if (now_ns() - looked < Waiter::kLook) continue;
      looked = now_ns();
      caller.on_look();
    }
  }
  size_t done = 0;
  do {
    const size_t piece = std::min(bytes - done, kPiece);
    Head head{uint32_t(piece), uint16_t(rank_), done == 0, done + piece == bytes};
    while (!append(head, data + done, caller)) wait_for_room(caller);
    done += piece;
  } while (done < bytes);
  if (urgent)
    for (uint32_t r = 0; r < size_; ++r) raise(control_.ranks[r].alarm);
}

// False if there is no room.
bool Journal::append(const Head& head, const char* data, const Caller& caller) {
  const uint64_t need = sizeof(Head) + padded<Head>(head.bytes);
  uint64_t end;
  bool crowded;
  {
    Hold hold(*this, caller);
    const uint64_t at = shared_.end.load(std::memory_order_relaxed);
    end = at + need;
    if (end - shared_.slowest > kJournalBytes / 2) scan();
    if (end - shared_.slowest > kJournalBytes) return false;
    crowded = end - shared_.slowest > kJournalBytes / 2;
    write(at, &head, sizeof head);
    write(at + sizeof head, data, head.bytes);
    shared_.end.exchange(end, std::memory_order_seq_cst);
  }
  for (uint32_t r = 0; r < size_; ++r) {
    RankControl& peer = control_.ranks[r];
    if (peer.journal.asleep.load(std::memory_order_seq_cst)) ring(peer.journal.bell);
    if (crowded && lag(r) > kJournalBytes / 2) raise(peer.alarm);
  }
  return true;
}

// Find how far the slowest reader is; a holder's work.
void Journal::scan() {
  uint64_t slowest = shared_.end.load(std::memory_order_relaxed);
  for (uint32_t r = 0; r < size_; ++r)
    slowest = std::min(slowest, control_.ranks[r].journal_read.load(std::memory_order_acquire));
  shared_.slowest = slowest;
}

uint64_t Journal::lag(uint32_t rank) const {
  const uint64_t read = control_.ranks[rank].journal_read.load(std::memory_order_seq_cst);
  const uint64_t end = shared_.end.load(std::memory_order_seq_cst);
  return read < end ? end - read : 0;  // 0 for one that reads no more
}

// Ranks that leave no room for a large piece. Those that have died are no longer waited for.
std::vector<uint32_t> Journal::in_the_way() {
  std::vector<uint32_t> ranks;
  for (uint32_t r = 0; r < size_; ++r) {
    if (lag(r) <= kJournalBytes / 2) continue;
    if (r != rank_ && waiter_.is_gone(r))
      control_.ranks[r].journal_read.store(kReadsNoMore, std::memory_order_seq_cst);
    else
      ranks.push_back(r);
  }
  return ranks;
}

void Journal::wait_for_room(const Caller& caller) {
  auto ready = [&] {
    relieve();  // this rank may be the slow one
    for (uint32_t r = 0; r < size_; ++r)
      if (lag(r) > kJournalBytes / 2) return false;
    return true;
  };
  const uint64_t timeout_ns = waiter_.timeout_ns();
  const uint64_t start = now_ns();
  const Patience patience{0, wait_.yield_ns, Waiter::kLook, Waiter::kLook};
  while (!until(ready, shared_.room, patience, caller)) {
    const std::vector<uint32_t> ranks = in_the_way();
    if (!ranks.empty() && now_ns() - start > timeout_ns)
      waiter_.fail_late(ranks, "the journal, which is full,");
  }
}

void Journal::write(uint64_t at, const void* data, size_t bytes) {
  const size_t offset = at % kJournalBytes, first = std::min(bytes, size_t(kJournalBytes) - offset);
  if (first) std::memcpy(shared_.ring + offset, data, first);
  if (bytes > first)
    std::memcpy(shared_.ring, static_cast<const char*>(data) + first, bytes - first);
}

void Journal::copy(uint64_t at, char* to, size_t bytes) const {
  const size_t offset = at % kJournalBytes, first = std::min(bytes, size_t(kJournalBytes) - offset);
  if (first) std::memcpy(to, shared_.ring + offset, first);
  if (bytes > first) std::memcpy(to + first, shared_.ring, bytes - first);
}

// Move all that is in the ring for this rank to its inbox. The mutex is held.
void Journal::pull() {
  uint64_t at = me().journal_read.load(std::memory_order_relaxed);
  const uint64_t end = shared_.end.load(std::memory_order_seq_cst);
  if (closed_ || at >= end) return;
  while (at < end) {
    Head head;
    copy(at, reinterpret_cast<char*>(&head), sizeof head);
    std::string& part = parts_[head.rank];
    if (head.first) part.clear();
    const size_t had = part.size();
    part.resize(had + head.bytes);
    copy(at + sizeof head, part.data() + had, head.bytes);
    at += sizeof head + padded<Head>(head.bytes);
    if (!head.last) continue;
    inbox_.push_back({head.rank, std::move(part)});
    part.clear();
  }
  unread_.store(inbox_.size(), std::memory_order_release);
  me().journal_read.store(at, std::memory_order_seq_cst);
  if (shared_.room.asleep.load(std::memory_order_seq_cst)) ring(shared_.room.bell);
}

void Journal::take() {
  std::lock_guard<std::mutex> lock(inbox_mutex_);
  pull();
}

std::vector<Message> Journal::read() {
  std::vector<Message> messages;
  std::lock_guard<std::mutex> lock(inbox_mutex_);
  pull();
  messages.swap(inbox_);
  unread_.store(0, std::memory_order_release);
  return messages;
}

bool Journal::any_unread() {
  if (unread_.load(std::memory_order_acquire)) return true;
  const uint64_t end = shared_.end.load(std::memory_order_seq_cst);
  if (me().journal_read.load(std::memory_order_relaxed) >= end) return false;
  take();  // it may be a part only
  return unread_.load(std::memory_order_acquire) != 0;
}

bool Journal::wait(uint64_t timeout_ns, const Caller& caller) {
  check_over();
  Patience patience{0, 0, Waiter::kLook, timeout_ns};
  if (caller.may_spin && timeout_ns) {
    patience.spins = std::min(wait_.spins, kLooks);
    patience.yield_ns = wait_.yield_ns;
  }
  return until([&] { return any_unread(); }, me().journal, patience, caller);
}

bool Journal::sleep(uint64_t timeout_ns, const Caller& caller) {
  check_over();
  auto& bell = me().alarm.bell;
  auto ready = [&] {
    return bell.load(std::memory_order_seq_cst) != alarms_seen_.load(std::memory_order_relaxed) ||
           lag(rank_) > kJournalBytes / 2;
  };
  const bool woken = until(ready, me().alarm, {0, 0, kLongNap, timeout_ns}, caller);
  if (!woken) return false;
  alarms_seen_.store(bell.load(std::memory_order_seq_cst), std::memory_order_relaxed);
  check_over();
  relieve();
  return true;
}

void Journal::kick() { raise(me().alarm); }

void Journal::relieve() {
  if (lag(rank_) > kJournalBytes / 2) take();
  if (also_) also_();
}

void Journal::close() {
  closed_ = true;
  { std::lock_guard<std::mutex> lock(append_mutex_); }
  std::lock_guard<std::mutex> lock(inbox_mutex_);
  me().journal_read.store(kReadsNoMore, std::memory_order_seq_cst);
  ring(shared_.room.bell);
}

}  // namespace blinkrun
