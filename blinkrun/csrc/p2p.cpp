#include "p2p.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "mail.hpp"
#include "network.hpp"

namespace blinkrun {

namespace {

constexpr size_t kPiece = 64 << 10;   // moved before the other side is told
constexpr size_t kSmall = 16 << 10;   // bytes below which the caller is not told of blocking
constexpr uint32_t kQuickLooks = 400;
// Of those who wait for other hosts, too: a look costs a call of MPI, and brings no answer sooner.
constexpr uint32_t kFarLooks = 20;
constexpr uint64_t kFarYield = 100'000;

// Until the next look at MPI: longer, the longer it has been.
uint64_t nap_ns(uint64_t waited_ns) {
  return std::clamp<uint64_t>(waited_ns / 16, 20'000, 1'000'000);
}

}  // namespace

// A lane to a rank of this host. One thread at a time has a pipe.
class Pipes::Near : public Lane {
 public:
  Near(Pipes& pipes, uint32_t peer, std::atomic<bool>& busy)
      : Lane(peer, pipes.waiter_), pipes_(pipes), busy_(busy) {}

  void fail_if_gone() override {
    if (waiter_.is_gone(peer_) && !ready()) waiter_.fail_gone(peer_, what());
  }

 protected:
  bool hold() {
    if (!held_) held_ = !busy_.exchange(true, std::memory_order_acquire);
    return held_;
  }
  void let_go() {
    if (!held_) return;
    held_ = false;
    busy_.store(false, std::memory_order_seq_cst);
    pipes_.wake(pipes_.rank_);  // a thread of this rank may wait for its turn
  }
  bool can_hold() const { return held_ || !busy_.load(std::memory_order_seq_cst); }

  Pipes& pipes_;

 private:
  std::atomic<bool>& busy_;
  bool held_ = false;
};

namespace {

constexpr uint64_t padded(uint64_t bytes) { return (bytes + 15) / 16 * 16; }

void copy_in(char* ring, uint64_t at, const char* from, size_t bytes) {
  const size_t offset = at % kPipeRing, first = std::min(bytes, kPipeRing - offset);
  if (first) std::memcpy(ring + offset, from, first);
  if (bytes > first) std::memcpy(ring, from + first, bytes - first);
}

void copy_out(const char* ring, uint64_t at, char* to, size_t bytes) {
  const size_t offset = at % kPipeRing, first = std::min(bytes, kPipeRing - offset);
  if (first) std::memcpy(to, ring + offset, first);
  if (bytes > first) std::memcpy(to + first, ring, bytes - first);
}

// Bytes of a message that lie in [at, at + moved) of its padded length.
size_t payload(size_t bytes, uint64_t at, uint64_t moved) {
  return at >= bytes ? 0 : size_t(std::min<uint64_t>(bytes - at, moved));
}

}  // namespace

class Pipes::SendLane final : public Pipes::Near {
 public:
  SendLane(Pipes& pipes, uint32_t peer)
      : Near(pipes, peer, pipes.outboxes_[peer].busy), pipe_(pipes.pipe(pipes.rank_, peer)) {}
  ~SendLane() override {
    if (!begun_) let_go();  // in the middle of a message nobody may go on: the group is aborted
  }

  bool ready() override { return can_hold() && room() >= sizeof(Head); }

  bool step() override {
    if (!hold()) return false;
    char* const ring = pipes_.ring(pipes_.rank_, pipe_);
    bool moved = false;
    while (!done() && room() >= sizeof(Head)) {
      const Transfer& t = waiting_.front();
      uint64_t at = pipe_.written.load(std::memory_order_relaxed);
      if (!begun_) {
        const Head head{t.tag, t.bytes};
        copy_in(ring, at, reinterpret_cast<const char*>(&head), sizeof head);
        at += sizeof head;
        begun_ = true;
      }
      const uint64_t left = padded(t.bytes) - sent_;
      const uint64_t more = std::min<uint64_t>({left, kPiece, kPipeRing - (at - read())});
      copy_in(ring, at, t.data + sent_, payload(t.bytes, sent_, more));
      sent_ += more;
      pipe_.written.exchange(at + more, std::memory_order_seq_cst);
      pipes_.wake(peer_);
      moved = true;
      if (sent_ < padded(t.bytes)) continue;
      waiting_.pop_front();
      begun_ = false;
      sent_ = 0;
    }
    if (done()) let_go();
    return moved;
  }

  std::string what() const override { return describe(waiting_.front()); }

 private:
  uint64_t read() const { return pipe_.read.load(std::memory_order_seq_cst); }
  uint64_t room() const {
    return kPipeRing - (pipe_.written.load(std::memory_order_relaxed) - read());
  }

  Pipe& pipe_;
  bool begun_ = false;  // the head of the first transfer is written
  uint64_t sent_ = 0;   // of its bytes
};

class Pipes::RecvLane final : public Pipes::Near {
 public:
  RecvLane(Pipes& pipes, uint32_t peer, std::optional<Failure>& mismatch)
      : Near(pipes, peer, pipes.inboxes_[peer].busy), pipe_(pipes.pipe(peer, pipes.rank_)),
        inbox_(pipes.inboxes_[peer]), mismatch_(mismatch) {}
  ~RecvLane() override {
    if (!target_) let_go();
  }

  bool ready() override {
    if (can_hold() && unread()) return true;
    std::lock_guard<std::mutex> lock(inbox_.mutex);
    for (const Transfer& t : waiting_)
      if (inbox_.aside.count(t.tag)) return true;
    return false;
  }

  bool step() override {
    bool moved = !target_ && take_aside();
    if (!done() && hold()) {
      if (!target_) moved |= take_aside();  // what the thread before has left there
      while (!done() && unread()) moved |= read_some();
    }
    if (done()) let_go();
    return moved;
  }

  // Set aside what has come of the next message; whether there is one.
  bool set_aside() {
    if (!hold() || (!target_ && !unread())) return false;
    while (unread()) {
      read_some();
      if (!target_) break;
    }
    return true;
  }
  bool in_message() const { return target_ != nullptr; }

  std::string what() const override {
    if (done()) return "a message from rank " + std::to_string(waiter_.name(peer_));
    return describe(waiting_.front());
  }

 private:
  uint64_t unread() const {
    return pipe_.written.load(std::memory_order_seq_cst) - pipe_.read.load(std::memory_order_relaxed);
  }

  bool take_aside() {
    bool moved = false;
    for (size_t i = 0; i < waiting_.size();) {
      const Transfer t = waiting_[i];
      std::optional<Parcel> parcel;
      {
        std::lock_guard<std::mutex> lock(inbox_.mutex);
        auto found = inbox_.aside.find(t.tag);
        if (found == inbox_.aside.end()) {
          ++i;
          continue;
        }
        if (found->second.front().bytes == t.bytes) {
          parcel = std::move(found->second.front());
          found->second.pop_front();
          if (found->second.empty()) inbox_.aside.erase(found);
        } else {
          mismatched(t, found->second.front().bytes);
        }
      }
      if (parcel && t.bytes) std::memcpy(t.data, parcel->data.get(), t.bytes);
      waiting_.erase(waiting_.begin() + long(i));
      moved = true;
    }
    return moved;
  }

  // Read a head, or the next piece of the message; whether it is one of the transfers.
  bool read_some() {
    const char* const ring = pipes_.ring(peer_, pipe_);
    const uint64_t at = pipe_.read.load(std::memory_order_relaxed);
    if (!target_) {
      copy_out(ring, at, reinterpret_cast<char*>(&head_), sizeof head_);
      begin();
      advance(at + sizeof head_);
      if (padded(head_.bytes)) return is_wanted_;
    } else {
      const uint64_t more = std::min<uint64_t>({padded(head_.bytes) - got_, kPiece, unread()});
      copy_out(ring, at, target_ + got_, payload(head_.bytes, got_, more));
      got_ += more;
      advance(at + more);
    }
    if (got_ == padded(head_.bytes)) end();
    return is_wanted_;
  }

  void advance(uint64_t read) {
    pipe_.read.exchange(read, std::memory_order_seq_cst);
    pipes_.wake(peer_);
  }

  void begin() {
    const auto mine = std::find_if(waiting_.begin(), waiting_.end(),
                                   [&](const Transfer& t) { return t.tag == head_.tag; });
    is_wanted_ = mine != waiting_.end() && mine->bytes == head_.bytes;
    index_ = mine - waiting_.begin();
    got_ = 0;
    if (!is_wanted_) parcel_ = Parcel{std::unique_ptr<char[]>(new char[head_.bytes + 1]), head_.bytes};
    static char nothing;
    target_ = is_wanted_ ? mine->data : parcel_.data.get();
    if (!target_) target_ = &nothing;
  }

  void end() {
    target_ = nullptr;
    if (is_wanted_) {
      waiting_.erase(waiting_.begin() + index_);
      return;
    }
    {
      std::lock_guard<std::mutex> lock(inbox_.mutex);
      inbox_.aside[head_.tag].push_back(std::move(parcel_));
    }
    pipes_.wake(pipes_.rank_);  // another thread of this rank may wait for it
    take_aside();               // or this one does, for another size
  }

  void mismatched(const Transfer& t, size_t bytes) {
    if (!mismatch_) mismatch_ = other_size(t, bytes, waiter_.name(pipes_.rank_));
  }

  Pipe& pipe_;
  Inbox& inbox_;
  std::optional<Failure>& mismatch_;
  Head head_{};
  char* target_ = nullptr;  // of the message that has begun
  bool is_wanted_ = false;
  long index_ = 0;          // of its transfer, if it is wanted
  uint64_t got_ = 0;
  Parcel parcel_{};
};

Pipes::Pipes(uint32_t rank, std::vector<Mapping>& arenas, Heap& heap, WaitConfig wait, Waiter& waiter,
             Journal& journal, Network* network)
    : rank_(rank), size_(uint32_t(arenas.size())), arenas_(arenas), heap_(heap), wait_(wait),
      waiter_(waiter), journal_(journal), network_(network), inboxes_(size_), outboxes_(size_) {}

Pipes::~Pipes() = default;

void Pipes::close() {
  std::lock_guard<std::mutex> lock(open_mutex_);
  if (mail_) mail_->close();
}

BellLine& Pipes::bell(uint32_t rank) const {
  return *reinterpret_cast<BellLine*>(arenas_[rank].data() + kPipesStart);
}

Pipe& Pipes::pipe(uint32_t src, uint32_t dst) const {
  return reinterpret_cast<Pipe*>(arenas_[src].data() + kPipesStart + sizeof(BellLine))[dst];
}

char* Pipes::ring(uint32_t src, const Pipe& pipe) const {
  return arenas_[src].data() + pipe.ring.load(std::memory_order_acquire);
}

void Pipes::open(uint32_t dst) {
  std::lock_guard<std::mutex> lock(open_mutex_);
  Pipe& mine = pipe(rank_, dst);
  if (mine.ring.load(std::memory_order_relaxed)) return;
  const size_t offset = heap_.allocate(kPipeRing);
  if (offset == SIZE_MAX)
    throw Failure{Failure::Kind::kInvalid,
                  "send to rank " + std::to_string(waiter_.name(dst)) + ": the arena has no " +
                      std::to_string(kPipeRing) + " bytes left; set BLINKRUN_ARENA_BYTES to more", {}};
  mine.ring.store(offset, std::memory_order_release);
}

// What a waiter calls a rank, if messages can go there.
uint32_t Pipes::check(uint32_t peer) const {
  std::string problem;
  const uint32_t all = network_ ? network_->hosts().size() : size_;
  const uint32_t place = network_ && peer < all ? network_->place(peer) : peer;
  if (peer >= all) problem = "there is no rank " + std::to_string(peer);
  else if (place == rank_) problem = "a rank sends nothing to itself";
  else if (place & kElsewhere) return place;
  else if (!arenas_[place].data())
    problem = "no link joins rank " + std::to_string(waiter_.name(rank_)) + " and rank " +
              std::to_string(waiter_.name(place));
  else if (sizeof(BellLine) + size_ * sizeof(Pipe) > kPipesBytes) problem = "too many ranks";
  if (!problem.empty()) throw Failure{Failure::Kind::kInvalid, problem, {}};
  return place;
}

Mail& Pipes::mail() {
  if (network_->is_closed()) Network::fail_closed();
  std::lock_guard<std::mutex> lock(open_mutex_);
  if (!mail_) mail_ = std::make_unique<Mail>(*network_, waiter_);
  return *mail_;
}

std::unique_ptr<Lane> Pipes::lane(const Transfer& t, uint32_t place, std::optional<Failure>& mismatch) {
  if (place & kElsewhere) return t.sends ? mail().send_lane(t.peer) : mail().recv_lane(t.peer, mismatch);
  if (!t.sends) return std::make_unique<RecvLane>(*this, place, mismatch);
  open(place);
  return std::make_unique<SendLane>(*this, place);
}

void Pipes::wake(uint32_t rank) const {
  BellLine& line = bell(rank);
  if (line.asleep.load(std::memory_order_seq_cst)) blinkrun::ring(line.bell);
}

void Pipes::run(const std::vector<Transfer>& transfers, const Caller& caller) {
  for (const Transfer& t : transfers) check(t.peer);
  if (waiter_.aborted()) waiter_.throw_aborted();
  std::optional<Failure> mismatch;
  Lanes lanes;
  std::map<std::pair<bool, uint32_t>, Lane*> by_peer;
  for (const Transfer& t : transfers) {
    Lane*& lane = by_peer[{t.sends, t.peer}];
    if (!lane) {
      lanes.push_back(this->lane(t, check(t.peer), mismatch));
      lane = lanes.back().get();
    }
    lane->add(t);
    if (t.bytes > kSmall) caller.on_block();
  }
  uint64_t since_ns = 0;
  while (!lanes.empty()) {
    bool moved = false;
    for (auto& lane : lanes) moved |= lane->step();
    lanes.erase(std::remove_if(lanes.begin(), lanes.end(), [](auto& lane) { return lane->done(); }),
                lanes.end());
    if (lanes.empty()) break;
    if (moved || !since_ns) since_ns = now_ns();
    wait(lanes, since_ns, caller);
  }
  if (mismatch) throw *mismatch;
}

bool Pipes::arrived(uint32_t src, int64_t tag, const Caller& caller) {
  const uint32_t place = check(src);
  if (waiter_.aborted()) waiter_.throw_aborted();
  if (place & kElsewhere) return arrived_elsewhere(src, tag, caller);
  auto is_there = [&] {
    std::lock_guard<std::mutex> lock(inboxes_[place].mutex);
    return inboxes_[place].aside.count(tag) != 0;
  };
  if (is_there()) return true;
  std::optional<Failure> mismatch;
  Lanes lanes;
  lanes.push_back(std::make_unique<RecvLane>(*this, place, mismatch));
  auto& lane = static_cast<RecvLane&>(*lanes[0]);
  while (lane.set_aside()) {
    if (lane.in_message()) wait(lanes, now_ns(), caller);
    else if (is_there()) return true;
  }
  return is_there();
}

bool Pipes::arrived_elsewhere(uint32_t src, int64_t tag, const Caller& caller) {
  if (mail().has(src, tag)) return true;
  caller.on_block();
  const uint64_t start = now_ns();
  for (uint64_t looked = start; mail().fetch(src, tag);) {
    if (waiter_.aborted()) waiter_.throw_aborted();
    const uint64_t now = now_ns();
    const timespec pause{0, long(nap_ns(now - start))};
    nanosleep(&pause, nullptr);
    if (now - looked < Waiter::kLook) continue;
    looked = now;
    network_->look();
    caller.on_look();
    if (now - start > waiter_.timeout_ns())
      network_->fail_late({src}, "a message with tag " + std::to_string(tag) + ", which has begun,");
  }
  return mail().has(src, tag);
}

// Return when a lane may go on. The caller looks again in any case.
void Pipes::wait(const Lanes& lanes, uint64_t since_ns,
                 const Caller& caller) {
  auto ready = [&] {
    return std::any_of(lanes.begin(), lanes.end(), [](auto& lane) { return lane->ready(); });
  };
  const bool far = std::any_of(lanes.begin(), lanes.end(),
                               [](auto& lane) { return lane->peer() & kElsewhere; });
  const uint32_t spins = caller.may_spin ? std::min(wait_.spins, far ? kFarLooks : UINT32_MAX) : 0;
  const uint64_t yield_ns = far ? std::min(wait_.yield_ns, kFarYield) : wait_.yield_ns;
  for (uint32_t i = 0; i < spins; ++i) {
    if (ready()) return;
    if (i == kQuickLooks) caller.on_block();
    cpu_relax();
  }
  if (ready()) return;
  caller.on_block();
  BellLine& line = bell(rank_);
  const uint64_t start = now_ns();
  for (uint64_t looked = start;;) {
    if (waiter_.aborted()) waiter_.throw_aborted();
    if (ready()) return;
    const uint64_t now = now_ns();
    if (now - looked >= Waiter::kLook) {
      looked = now;
      look(lanes, since_ns, caller);
    }
    if (now - start < yield_ns) {
      sched_yield();
      continue;
    }
    line.asleep.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t heard = line.bell.load(std::memory_order_seq_cst);
    if (!ready() && !waiter_.aborted()) futex_wait(line.bell, heard, far ? nap_ns(now - start) : Waiter::kLook);
    line.asleep.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void Pipes::look(const Lanes& lanes, uint64_t since_ns,
                 const Caller& caller) {
  journal_.relieve();  // others may wait for this rank to read
  if (network_) network_->look();
  caller.on_look();
  for (auto& lane : lanes) lane->fail_if_gone();
  if (now_ns() - since_ns <= waiter_.timeout_ns()) return;
  std::vector<uint32_t> late;
  for (auto& lane : lanes) {
    if (lane->ready()) return;
    late.push_back(lane->peer());
  }
  std::sort(late.begin(), late.end());
  late.erase(std::unique(late.begin(), late.end()), late.end());
  waiter_.fail_late(late, lanes[0]->what());
}

}  // namespace blinkrun
