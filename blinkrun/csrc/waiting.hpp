// Waiting for other ranks: spin, yield, sleep on a futex; never for ever, never for the dead.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "control.hpp"

namespace blinkrun {

// Why a call ended without a result. Becomes a Python exception in module.cpp.
struct Failure {
  enum class Kind { kMismatch, kTimeout, kPeerLeft, kAborted, kInvalid, kClosed, kMpi };
  Kind kind;
  std::string text;
  std::vector<int> ranks;
};

struct WaitConfig {
  uint32_t spins;      // looks before yielding; 0 where ranks outnumber cores
  uint64_t yield_ns;   // yielding before sleeping
};

// What the core tells whoever called it, while it takes its time.
struct Caller {
  std::function<void()> on_block;  // before long waits and large moves; may be called again
  std::function<void()> on_look;   // now and then in a long wait; may throw to end it
  bool may_spin;                   // the thread has a core for itself
};

void cpu_relax();
uint64_t now_ns();
uint64_t pid_namespace();
// Whether a signal ended it.
bool futex_wait(std::atomic<uint32_t>& word, uint32_t expected, uint64_t timeout_ns);
void futex_wake(std::atomic<uint32_t>& word);
void ring(std::atomic<uint32_t>& bell);  // wake all who sleep on it

// Ranks on other hosts have no place in the control block. Where ranks of the host are numbered
// 0, 1, …, such a rank is this with its number among all.
constexpr uint32_t kElsewhere = uint32_t(1) << 31;

// What a waiter asks about them. Ranks without `kElsewhere`; all of it from any thread.
class Elsewhere {
 public:
  virtual ~Elsewhere() = default;
  virtual void look() = 0;  // take what they have told; may record that the job is aborted
  virtual bool is_gone(uint32_t rank) = 0;  // and nothing of what it has sent is on its way
  virtual void aborted(const AbortRecord& record) = 0;  // this rank was the first of its host
  virtual int32_t name(uint32_t rank) const = 0;
  virtual std::string names(const std::vector<uint32_t>& ranks) const = 0;  // and their hosts
};

class Waiter {
 public:
  Waiter(Control control, uint32_t rank, std::vector<int32_t> names, double timeout_s);
  ~Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  void know_of(Elsewhere* elsewhere) { elsewhere_ = elsewhere; }
  void look() {
    if (elsewhere_) elsewhere_->look();
  }
  void set_timeout(double seconds) { timeout_ns_ = uint64_t(seconds * 1e9); }
  uint64_t timeout_ns() const { return timeout_ns_; }
  bool aborted() const {
    return control_.header->abort.kind.load(std::memory_order_acquire) != 0;
  }
  [[noreturn]] void throw_aborted() const;  // only when `aborted()`
  // Record the failure for all ranks (the first one wins) and wake them.
  void abort(AbortKind kind, int32_t about, const std::string& text);
  void abort_as_told(AbortKind kind, int32_t rank, int32_t about, const std::string& text);
  // Wake the ranks that sleep until this one signals.
  void wake() {
    if (control_.header->sleepers.load(std::memory_order_seq_cst) != 0) wake_sleepers();
  }
  void wake_all();
  bool is_gone(uint32_t rank);  // has left or died; from any thread
  // What was waited for will not come, or did not come in time: abort the job, and throw Failure.
  [[noreturn]] void fail_gone(uint32_t rank, const std::string& what);
  [[noreturn]] void fail_late(const std::vector<uint32_t>& ranks, const std::string& what);
  int32_t name(uint32_t rank) const {
    return rank & kElsewhere ? elsewhere_->name(rank & ~kElsewhere) : names_[rank];
  }

  // Wait until `ready()`, which only looks. `missing()` lists the ranks waited for; `what` says what
  // for; `on_look` is called now and then and may throw; `nap_ns()` says how long at most to sleep
  // before the next look. Throws Failure.
  template <class Ready, class Missing, class What, class OnLook, class Nap>
  void wait(const WaitConfig& config, Ready ready, Missing missing, What what, OnLook on_look,
            Nap nap_ns) {
    for (uint32_t i = 0; i < config.spins; ++i) {
      if (ready()) return;
      cpu_relax();
    }
    const uint64_t start = now_ns();
    do {
      if (ready()) return;
      if (aborted()) throw_aborted();
      yield();
    } while (now_ns() - start < config.yield_ns);
    uint32_t looks_at_gone = 0;
    for (;;) {
      if (ready()) return;
      const std::vector<uint32_t> ranks = missing();
      sleep(ranks, ready, nap_ns());
      if (aborted()) throw_aborted();
      const uint64_t now = now_ns();
      if (now - looked_ns_ < kLook) continue;
      looked_ns_ = now;
      look();
      if (aborted()) throw_aborted();
      check(ranks, ready, missing, start, what, on_look, looks_at_gone);
      on_look();
    }
  }

  static constexpr uint64_t kLook = 50'000'000;  // look for the dead and the late 20 times a second

 private:
  static constexpr uint64_t kGrace = 1'000'000'000;
  static constexpr uint32_t kLooksAtGone = 4;  // of a wait, at least kLook apart

  template <class Ready>
  void sleep(const std::vector<uint32_t>& ranks, Ready ready, uint64_t most_ns) {
    RankControl& me = control_.ranks[rank_];
    const uint32_t bell = me.bell.load(std::memory_order_acquire);
    uint64_t mask = 0;
    for (uint32_t rank : ranks) mask |= bit_of(rank);
    me.waiting_for.store(mask, std::memory_order_seq_cst);
    control_.header->sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (!ready() && !aborted()) futex_wait(me.bell, bell, std::min(most_ns, kLook));
    control_.header->sleepers.fetch_sub(1, std::memory_order_seq_cst);
    me.waiting_for.store(0, std::memory_order_seq_cst);
  }

  // A rank that is gone and still missed will never come, whatever else may be ready. One of another
  // host may have sent its last message before, which this thread must have let MPI bring: it may
  // have slept since another thread heard that the rank is gone.
  template <class Ready, class Missing, class What, class OnLook>
  void check(const std::vector<uint32_t>& ranks, Ready ready, Missing missing, uint64_t start,
             What what, OnLook on_look, uint32_t& looks_at_gone) {
    auto missed = [&](uint32_t rank) {
      ready();  // takes what has come
      const std::vector<uint32_t> now = missing();
      return std::find(now.begin(), now.end(), rank) != now.end();
    };
    for (uint32_t rank : ranks) {
      if (!is_gone(rank) || !missed(rank)) continue;
      if (rank & kElsewhere && ++looks_at_gone < kLooksAtGone) return;
      on_look();  // may know why it has left, and throws then
      fail_gone(rank, what());
    }
    if (ranks.empty()) return;  // held by time alone
    if (now_ns() - start > timeout_ns_ && !ready()) fail_late(ranks, what());
  }

  // What says in `waiting_for` that a rank is waited for. One of another host never rings; the bit
  // of this rank, which does not ring for itself, says that there is one.
  uint64_t bit_of(uint32_t rank) const {
    return uint64_t(1) << ((rank & kElsewhere ? rank_ : rank) % 64);
  }
  bool record(AbortKind kind, int32_t rank, int32_t about, const std::string& text);
  bool told_meanwhile(uint32_t doubts);
  std::string names(const std::vector<uint32_t>& ranks) const;
  void yield();
  void wake_sleepers();
  struct Culprits {
    std::vector<uint32_t> ranks;
    uint32_t doubts;  // that it is they: 0, none
  };
  Culprits culprits(const std::vector<uint32_t>& ranks) const;
  [[noreturn]] void fail(AbortKind kind, int32_t about, const std::string& text);

  Control control_;
  uint32_t rank_;
  std::vector<int32_t> names_;
  Elsewhere* elsewhere_ = nullptr;
  std::atomic<uint64_t> timeout_ns_;
  std::atomic<uint64_t> looked_ns_{0};
  uint64_t pid_namespace_;
  std::vector<std::atomic<int>> pidfds_;  // -1: not opened yet, -2: cannot be
};

}  // namespace blinkrun
