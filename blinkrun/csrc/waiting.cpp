#include "waiting.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

namespace blinkrun {

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1'000'000'000u + uint64_t(t.tv_nsec);
}

uint64_t pid_namespace() {
  struct stat st{};
  return stat("/proc/self/ns/pid", &st) == 0 ? uint64_t(st.st_ino) : 0;
}

bool futex_wait(std::atomic<uint32_t>& word, uint32_t expected, uint64_t timeout_ns) {
  timespec t{time_t(timeout_ns / 1'000'000'000u), long(timeout_ns % 1'000'000'000u)};
  // Interrupted, woken, changed or timed out: the caller looks again in every case.
  return syscall(SYS_futex, &word, FUTEX_WAIT, expected, &t, nullptr, 0) != 0 && errno == EINTR;
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

void ring(std::atomic<uint32_t>& bell) {
  bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(bell);
}

Waiter::Waiter(Control control, uint32_t rank, std::vector<int32_t> names, double timeout_s)
    : control_(control), rank_(rank), names_(std::move(names)),
      timeout_ns_(uint64_t(timeout_s * 1e9)), pid_namespace_(pid_namespace()),
      pidfds_(names_.size()) {
  for (auto& fd : pidfds_) fd.store(-1);
}

Waiter::~Waiter() {
  for (auto& fd : pidfds_)
    if (fd >= 0) close(fd);
}

void Waiter::yield() { sched_yield(); }

void Waiter::wake_sleepers() {
  const uint64_t bit = uint64_t(1) << (rank_ % 64);
  for (uint32_t r = 0; r < control_.header->size; ++r) {
    RankControl& peer = control_.ranks[r];
    if (!(peer.waiting_for.load(std::memory_order_seq_cst) & bit)) continue;
    ring(peer.bell);
  }
}

void Waiter::wake_all() {
  for (uint32_t r = 0; r < control_.header->size; ++r) {
    RankControl& peer = control_.ranks[r];
    for (std::atomic<uint32_t>* bell : {&peer.bell, &peer.journal.bell, &peer.alarm.bell}) ring(*bell);
  }
  ring(control_.journal->room.bell);
}

bool Waiter::is_gone(uint32_t rank) {
  if (rank & kElsewhere) return elsewhere_->is_gone(rank & ~kElsewhere);
  const RankControl& peer = control_.ranks[rank];
  const auto state = RankState(peer.state.load(std::memory_order_acquire));
  if (state == RankState::kLeft) return true;
  if (state == RankState::kJoining || peer.pid_namespace != pid_namespace_) return false;
  int fd = pidfds_[rank];
  if (fd == -1) {
    const int opened = int(syscall(SYS_pidfd_open, peer.pid, 0));
    if (opened < 0 && errno == ESRCH) return true;
    const int wanted = opened < 0 ? -2 : opened;
    if (pidfds_[rank].compare_exchange_strong(fd, wanted)) {
      fd = wanted;
    } else if (opened >= 0) {  // another thread was first
      close(opened);
    }
  }
  if (fd == -2) return kill(peer.pid, 0) != 0 && errno == ESRCH;
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, 0) == 1;
}

// Whether it is this one that counts.
bool Waiter::record(AbortKind kind, int32_t rank, int32_t about, const std::string& text) {
  AbortRecord& record = control_.header->abort;
  uint32_t free = 0;
  const bool first = record.claimed.compare_exchange_strong(free, 1);
  if (first) {
    record.rank = rank;
    record.about = about;
    std::snprintf(record.text, sizeof record.text, "%s", text.c_str());
    record.kind.store(uint32_t(kind), std::memory_order_release);
  }
  // Another rank may be writing its record; it is done in a moment unless it dies just now.
  for (int i = 0; !aborted() && i < 10'000; ++i) yield();
  wake_all();
  return first;
}

void Waiter::abort(AbortKind kind, int32_t about, const std::string& text) {
  const bool first = record(kind, names_[rank_], about, text);
  if (first && elsewhere_) elsewhere_->aborted(control_.header->abort);
}

// What a rank of another host has recorded: its host tells all others itself.
void Waiter::abort_as_told(AbortKind kind, int32_t rank, int32_t about, const std::string& text) {
  record(kind, rank, about, text);
}

void Waiter::fail(AbortKind kind, int32_t about, const std::string& text) {
  abort(kind, about, text);
  if (aborted()) throw_aborted();
  throw Failure{Failure::Kind::kAborted, text, {about}};
}

void Waiter::throw_aborted() const {
  const AbortRecord& record = control_.header->abort;
  const auto kind = AbortKind(record.kind.load(std::memory_order_acquire));
  Failure failure{Failure::Kind::kAborted, record.text, {record.rank}};
  if (kind == AbortKind::kTimeout) failure.kind = Failure::Kind::kTimeout;
  if (kind == AbortKind::kPeerLeft) failure.kind = Failure::Kind::kPeerLeft;
  if (kind != AbortKind::kAborted) failure.ranks = {record.about};
  throw failure;
}

void Waiter::fail_gone(uint32_t rank, const std::string& what) {
  const bool left = (rank & kElsewhere) ||  // which says when it leaves
                    control_.ranks[rank].state.load(std::memory_order_acquire) ==
                        uint32_t(RankState::kLeft);
  const std::string text = names({rank}) +
                           (left ? " has left the job" : " has died") + " while rank " +
                           std::to_string(names_[rank_]) + " waits for it in " + what;
  fail(AbortKind::kPeerLeft, name(rank), text);
}

// Who keeps this rank waiting: not the ranks of this host that wait for others themselves, nor this
// one. A rank that waits wakes now and then to look around, so one look is not enough. Others may be
// asking the same just now: this rank says that it waits, to the end.
Waiter::Culprits Waiter::culprits(const std::vector<uint32_t>& ranks) const {
  constexpr int kLooks = 20;
  constexpr timespec kPause{0, 1'000'000};
  std::vector<uint32_t> others, far;
  uint64_t mask = 0;
  for (uint32_t rank : ranks) {
    mask |= bit_of(rank);
    if (rank & kElsewhere) far.push_back(rank);
    else if (rank != rank_) others.push_back(rank);
  }
  control_.ranks[rank_].waiting_for.store(mask, std::memory_order_seq_cst);
  std::vector<uint32_t> awake = others;
  for (int look = 0; look < kLooks && !awake.empty(); ++look) {
    awake.erase(std::remove_if(awake.begin(), awake.end(),
                               [&](uint32_t r) {
                                 return control_.ranks[r].waiting_for.load(
                                            std::memory_order_acquire) != 0;
                               }),
                awake.end());
    nanosleep(&kPause, nullptr);
  }
  if (!awake.empty()) {
    awake.insert(awake.end(), far.begin(), far.end());
    return {awake, 0};
  }
  if (!far.empty()) return {far, 1};
  return {others.empty() ? ranks : others, elsewhere_ ? 2u : 0u};
}

// Let others speak first who may know better: they wait for nobody who waits. Whether one has.
bool Waiter::told_meanwhile(uint32_t doubts) {
  constexpr timespec kPause{0, 20'000'000};
  const uint64_t start = now_ns(), grace_ns = doubts * std::min<uint64_t>(timeout_ns_ / 4, kGrace);
  while (!aborted() && now_ns() - start < grace_ns) {
    nanosleep(&kPause, nullptr);
    look();
  }
  return aborted();
}

std::string Waiter::names(const std::vector<uint32_t>& ranks) const {
  std::string text;
  std::vector<uint32_t> far;
  size_t near = 0;
  for (uint32_t rank : ranks) {
    if (rank & kElsewhere) far.push_back(rank & ~kElsewhere);
    else text += (near++ ? ", " : "") + std::to_string(names_[rank]);
  }
  if (near) text = (near > 1 ? "ranks " : "rank ") + text;
  if (far.empty()) return text;
  return (near ? text + ", " : "") + elsewhere_->names(far);
}

void Waiter::fail_late(const std::vector<uint32_t>& late, const std::string& what) {
  const Culprits culprits = this->culprits(late);
  if (told_meanwhile(culprits.doubts)) throw_aborted();
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", double(timeout_ns_) / 1e9);
  const std::string text = "rank " + std::to_string(names_[rank_]) + " waited " + seconds +
                           " s in " + what + " for " + names(culprits.ranks) +
                           "; raise BLINKRUN_TIMEOUT_S (or --timeout) if they are only slow";
  fail(AbortKind::kTimeout, culprits.ranks.empty() ? -1 : name(culprits.ranks[0]), text);
}

}  // namespace blinkrun
