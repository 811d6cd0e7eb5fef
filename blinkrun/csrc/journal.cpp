#include "journal.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "network.hpp"
#include "relay.hpp"

namespace blinkrun {

namespace {

constexpr uint32_t kLooks = 300;              // before yielding: see ring.cpp
constexpr uint64_t kNap = 50'000;             // between two looks at a lock of this process
constexpr uint64_t kLongNap = 1'000'000'000;  // of a rank that has nothing to offer

void nap() {
  timespec t{0, long(kNap)};
  nanosleep(&t, nullptr);
}

// Ring a bell that counts even if nobody sleeps by it now.
void raise(BellLine& line) {
  line.bell.fetch_add(1, std::memory_order_seq_cst);
  if (line.asleep.load(std::memory_order_seq_cst)) futex_wake(line.bell);
}

std::vector<std::atomic<uint64_t>*> readers(Control control) {
  std::vector<std::atomic<uint64_t>*> reads;
  for (uint32_t r = 0; r < control.header->size; ++r) reads.push_back(&control.ranks[r].journal_read);
  return reads;
}

}  // namespace

Journal::Journal(Control control, uint32_t rank, WaitConfig wait, Waiter& waiter, Network* network)
    : control_(control), rank_(rank), size_(control.header->size), wait_(wait), waiter_(waiter),
      network_(network), ring_(*control.journal, readers(control), rank, wait, waiter),
      check_([this] { if (closed_) check_over(); }), parts_(network ? network->hosts().size() : size_) {
  if (!network) return;
  OutgoingControl& outgoing = *control.outgoing;
  outgoing_ = std::make_unique<Ring>(
      outgoing.journal, std::vector<std::atomic<uint64_t>*>{&outgoing.read}, rank, wait, waiter);
}

Journal::~Journal() = default;

void Journal::start_relay() {
  if (!network_ || !network_->hosts().leads() || relay_) return;
  relay_ = std::make_unique<Relay>(*this, *control_.outgoing, *network_, waiter_);
}

void Journal::stop_relay() {
  if (relay_) relay_->stop();
}

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
      if (network_) network_->look();
      caller.on_look();
    }
    if (passed >= patience.timeout_ns) return false;
    if (passed < patience.yield_ns) {
      if (relay_) relay_->help();
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
  const uint32_t sender = network_ ? network_->hosts().rank() : rank_;
  size_t done = 0;
  do {
    const size_t piece = std::min(bytes - done, Ring::kPiece);
    const bool is_last = done + piece == bytes;
    const uint8_t flags = uint8_t((done == 0 ? PieceHead::kFirst : 0) |
                                  (is_last ? PieceHead::kLast : 0) |
                                  (is_last && urgent ? PieceHead::kUrgent : 0));
    append({uint32_t(piece), uint16_t(sender), flags, 0}, data + done, caller);
    done += piece;
  } while (done < bytes);
}

void Journal::append(const PieceHead& head, const char* data, const Caller& caller) {
  if (outgoing_) {
    while (outgoing_->append(head, data, caller, check_) == Ring::Added::kNoRoom) wait_for_relay(caller);
    BellLine& relay = control_.outgoing->relay;
    if (relay.asleep.load(std::memory_order_seq_cst)) ring(relay.bell);
    return;
  }
  while (!deliver(head, data, caller, check_)) wait_for_room(caller);
}

// Append to the ring that this host's ranks read; false if there is no room.
bool Journal::deliver(const PieceHead& head, const char* data, const Caller& caller,
                      const Ring::Check& check) {
  const Ring::Added added = ring_.append(head, data, caller, check);
  if (added == Ring::Added::kNoRoom) return false;
  const bool crowded = added == Ring::Added::kCrowded;
  for (uint32_t r = 0; r < size_; ++r) {
    RankControl& peer = control_.ranks[r];
    if (peer.journal.asleep.load(std::memory_order_seq_cst)) ring(peer.journal.bell);
    if ((head.flags & PieceHead::kUrgent) || (crowded && ring_.lag(r) > kJournalBytes / 2))
      raise(peer.alarm);
  }
  return true;
}

// Ranks that leave no room for a large piece. Those that have died are no longer waited for.
std::vector<uint32_t> Journal::in_the_way() {
  std::vector<uint32_t> ranks;
  for (uint32_t r = 0; r < size_; ++r) {
    if (ring_.lag(r) <= kJournalBytes / 2) continue;
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
    return ring_.has_room();
  };
  const uint64_t start = now_ns();
  const Patience patience{0, wait_.yield_ns, Waiter::kLook, Waiter::kLook};
  while (!until(ready, ring_.room(), patience, caller)) {
    const std::vector<uint32_t> ranks = in_the_way();
    if (!ranks.empty() && now_ns() - start > waiter_.timeout_ns())
      waiter_.fail_late(ranks, "the journal, which is full,");
  }
}

// The relay says for whom it waits when its time is over; this is for one that says nothing.
void Journal::wait_for_relay(const Caller& caller) {
  auto ready = [&] {
    relieve();
    return outgoing_->has_room();
  };
  const uint64_t start = now_ns();
  const Patience patience{0, wait_.yield_ns, Waiter::kLook, Waiter::kLook};
  while (!until(ready, outgoing_->room(), patience, caller)) {
    if (waiter_.is_gone(0)) waiter_.fail_gone(0, "the journal");
    if (now_ns() - start > waiter_.timeout_ns() * 5 / 4) waiter_.fail_late({0}, "the journal");
  }
}

// Move all that is in the ring for this rank to its inbox. The mutex is held.
void Journal::pull() {
  uint64_t at = me().journal_read.load(std::memory_order_relaxed);
  const uint64_t end = ring_.end();
  if (closed_ || at >= end) return;
  while (at < end) {
    const PieceHead head = ring_.head_at(at);
    std::string& part = parts_[head.rank];
    if (head.flags & PieceHead::kFirst) part.clear();
    const size_t had = part.size();
    part.resize(had + head.bytes);
    ring_.copy(at + sizeof head, part.data() + had, head.bytes);
    at += Ring::room_of(head);
    if (!(head.flags & PieceHead::kLast)) continue;
    inbox_.push_back({head.rank, std::move(part)});
    part.clear();
  }
  unread_.store(inbox_.size(), std::memory_order_release);
  me().journal_read.store(at, std::memory_order_seq_cst);
  BellLine& room = ring_.room();
  if (room.asleep.load(std::memory_order_seq_cst)) ring(room.bell);
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
  const uint64_t end = ring_.end();
  if (me().journal_read.load(std::memory_order_relaxed) >= end) return false;
  take();  // it may be a part only
  return unread_.load(std::memory_order_acquire) != 0;
}

bool Journal::wait(uint64_t timeout_ns, const Caller& caller) {
  check_over();
  Patience patience{0, 0, Waiter::kLook, timeout_ns};
  if (caller.may_spin && timeout_ns) {
    const WaitConfig wait = network_ ? Network::wait_config(wait_, true) : wait_;
    patience.spins = std::min(wait.spins, kLooks);
    patience.yield_ns = wait.yield_ns;
  }
  return until([&] { return any_unread(); }, me().journal, patience, caller);
}

bool Journal::sleep(uint64_t timeout_ns, const Caller& caller) {
  check_over();
  auto& bell = me().alarm.bell;
  auto ready = [&] {
    return bell.load(std::memory_order_seq_cst) != alarms_seen_.load(std::memory_order_relaxed) ||
           ring_.lag(rank_) > kJournalBytes / 2;
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
  if (ring_.lag(rank_) > kJournalBytes / 2) take();
  if (also_) also_();
}

void Journal::close() {
  closed_ = true;
  ring_.finish();
  if (outgoing_) outgoing_->finish();
  std::lock_guard<std::mutex> lock(inbox_mutex_);
  me().journal_read.store(kReadsNoMore, std::memory_order_seq_cst);
  ring(ring_.room().bell);
}

}  // namespace blinkrun
