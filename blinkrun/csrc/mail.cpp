#include "mail.hpp"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cstring>

namespace blinkrun {

namespace {

// Between two looks at what is on its way: a part of the time since anything moved.
constexpr uint64_t kShortestNap = 50'000, kLongestNap = 2'000'000, kNapPart = 32;
constexpr unsigned long kSlack = 1'000;        // by which the kernel may prolong a nap
constexpr uint64_t kPatience = 1'000'000'000;  // at the end, for what others have not received yet

void nap(uint64_t ns) {
  timespec t{0, long(ns)};
  nanosleep(&t, nullptr);
}

}  // namespace

Mail::Mail(Network& network, Waiter& waiter)
    : network_(network), waiter_(waiter), letters_(kLetter, kPairHeadTag), messages_(network.mpi()),
      peers_(network.hosts().size()) {
  for (uint32_t rank = 0; rank < peers_.size(); ++rank)
    if (!network_.hosts().is_here(rank)) letters_.listen(messages_, rank);
}

bool Mail::through(Ids& ids) {
  ids.erase(std::remove_if(ids.begin(), ids.end(), [&](auto id) { return messages_.finish(id); }),
            ids.end());
  return ids.empty();
}

size_t Mail::finish(std::vector<Direct>& list) {
  const size_t before = list.size();
  list.erase(std::remove_if(list.begin(), list.end(), [&](Direct& each) { return through(each.ids); }),
             list.end());
  return before - list.size();
}

// A caller that ends in the middle of messages takes its memory with it.
void Mail::drop(std::vector<Direct>& list) {
  if (list.empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  for (Direct& each : list)
    for (Messages::Id id : each.ids) messages_.drop(id);
}

// Let MPI work; whether anything came or went.
bool Mail::progress() {
  if (closed_ || !messages_.progress()) return false;
  auto take = [this](const char* data, size_t bytes) { take_letter(data, bytes); };
  while (letters_.take(messages_, take)) messages_.progress();
  for (auto sent = sent_.begin(); sent != sent_.end();) {
    if (!through(sent->ids)) {
      ++sent;
      continue;
    }
    Peer& peer = peers_[sent->peer];
    peer.buffered -= sent->buffered;
    peer.following -= sent->follows;
    sent = sent_.erase(sent);
  }
  for (Peer& peer : peers_)
    for (auto& [tag, list] : peer.arrived)
      if (!list.front().fetching.empty()) through(list.front().fetching);
  return true;
}

void Mail::take_letter(const char* data, size_t bytes) {
  Arrived arrived{};
  std::memcpy(&arrived.head, data, sizeof(Head));
  const Head& head = arrived.head;
  if (bytes > sizeof(Head) || !head.bytes) {
    arrived.data.reset(new char[head.bytes + 1]);
    std::memcpy(arrived.data.get(), data + sizeof(Head), head.bytes);
  }
  peers_[head.sender].arrived[head.tag].push_back(std::move(arrived));
}

bool Mail::fits(uint32_t peer, size_t bytes) const {
  return peers_[peer].buffered + kLetter + bytes <= kMailBuffer;
}

void Mail::start_bytes(Ids& ids, bool sends, char* data, size_t bytes, uint32_t peer, uint32_t number) {
  const int tag = kPairTag + int(number % kPairTags);
  for (size_t at = 0; at < bytes; at += Messages::kLargest) {
    const size_t part = std::min(bytes - at, Messages::kLargest);
    ids.push_back(sends ? messages_.send(data + at, part, peer, tag)
                        : messages_.recv(data + at, part, peer, tag));
  }
}

// Send the head, and copies of the bytes. The caller may go on at once.
void Mail::send_buffered(uint32_t peer, const Transfer& t) {
  Peer& to = peers_[peer];
  const Head head{t.tag, t.bytes, to.next++, network_.hosts().rank()};
  const bool follows = t.bytes > kInline;
  const size_t bytes = sizeof head + t.bytes;
  Sent sent{peer, std::unique_ptr<char[]>(new char[bytes]), bytes, follows, {}};
  std::memcpy(sent.data.get(), &head, sizeof head);
  if (t.bytes) std::memcpy(sent.data.get() + sizeof head, t.data, t.bytes);
  sent.ids.push_back(
      messages_.send(sent.data.get(), follows ? sizeof head : bytes, peer, kPairHeadTag));
  if (follows)
    start_bytes(sent.ids, true, sent.data.get() + sizeof head, t.bytes, peer, head.number);
  to.buffered += bytes;
  to.following += follows;
  sent_.push_back(std::move(sent));
  progress();
  if (sent_.empty()) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  changed_.notify_one();
}

// Send the head, and the bytes from where they are.
Mail::Ids Mail::send_direct(uint32_t peer, const Transfer& t) {
  Peer& to = peers_[peer];
  const Head head{t.tag, t.bytes, to.next++, network_.hosts().rank()};
  Sent sent{peer, std::unique_ptr<char[]>(new char[sizeof head]), sizeof head, false, {}};
  std::memcpy(sent.data.get(), &head, sizeof head);
  sent.ids.push_back(messages_.send(sent.data.get(), sizeof head, peer, kPairHeadTag));
  to.buffered += sizeof head;
  sent_.push_back(std::move(sent));
  Ids ids;
  start_bytes(ids, true, t.data, t.bytes, peer, head.number);
  return ids;
}

Mail::Arrived* Mail::find(uint32_t peer, int64_t tag) {
  const auto found = peers_[peer].arrived.find(tag);
  return found == peers_[peer].arrived.end() ? nullptr : &found->second.front();
}

bool Mail::has(uint32_t peer, int64_t tag) {
  std::lock_guard<std::mutex> lock(mutex_);
  progress();
  const Arrived* found = find(peer, tag);
  return found && found->data && found->fetching.empty();
}

bool Mail::fetch(uint32_t peer, int64_t tag) {
  std::lock_guard<std::mutex> lock(mutex_);
  progress();
  Arrived* found = find(peer, tag);
  if (!found) return false;
  if (!found->data) {
    const Head& head = found->head;
    found->data.reset(new char[head.bytes]);
    start_bytes(found->fetching, false, found->data.get(), head.bytes, peer, head.number);
  }
  return !found->fetching.empty();
}

// What was sent and left is on its own: see to it that MPI sends it.
void Mail::serve() {
  prctl(PR_SET_TIMERSLACK, kSlack);
  std::unique_lock<std::mutex> lock(mutex_);
  try {
    for (uint64_t moved = now_ns(); !closed_ && !waiter_.aborted();) {
      if (sent_.empty()) {
        changed_.wait(lock);
        moved = now_ns();
        continue;
      }
      const uint64_t now = now_ns();
      if (progress()) moved = now;
      lock.unlock();
      nap(std::clamp((now - moved) / kNapPart, kShortestNap, kLongestNap));
      lock.lock();
    }
  } catch (const Failure& failure) {
    waiter_.abort(AbortKind::kAborted, -1, failure.text);
  }
}

void Mail::close() {
  for (const uint64_t start = now_ns(); now_ns() - start < kPatience; nap(kShortestNap)) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ || sent_.empty() || waiter_.aborted()) break;
    try {
      progress();
    } catch (const Failure&) {  // nobody is left to tell
      break;
    }
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  std::lock_guard<std::mutex> lock(mutex_);
  messages_.abandon();
  for (Sent& sent : sent_) (void)sent.data.release();  // MPI may still read it
  sent_.clear();
}

// ---- lanes ---------------------------------------------------------------------------------------

// Messages with a rank that is gone come no more; what it sent before may still be on its way.
class Gone {
 public:
  bool again(bool gone) {
    const bool before = gone_;
    gone_ = gone;
    return before && gone;
  }

 private:
  bool gone_ = false;  // as of the last look, 50 ms ago
};

class Mail::SendLane final : public Lane {
 public:
  SendLane(Mail& mail, uint32_t peer)
      : Lane(kElsewhere | peer, mail.waiter_), mail_(mail), rank_(peer) {}
  ~SendLane() override { mail_.drop(direct_); }

  bool done() const override { return waiting_.empty() && direct_.empty(); }

  bool ready() override {
    std::lock_guard<std::mutex> lock(mail_.mutex_);
    mail_.progress();
    return finish() || done() || can_begin();
  }

  bool step() override {
    std::lock_guard<std::mutex> lock(mail_.mutex_);
    mail_.progress();
    bool moved = finish();
    for (; can_begin(); waiting_.pop_front()) {
      const Transfer& t = waiting_.front();
      if (mail_.fits(rank_, t.bytes)) {
        mail_.send_buffered(rank_, t);
      } else {
        direct_.push_back({t, mail_.send_direct(rank_, t)});
        ++mail_.peers_[rank_].following;
      }
      moved = true;
    }
    return moved;
  }

  std::string what() const override {
    return describe(direct_.empty() ? waiting_.front() : direct_.front().transfer);
  }
  void fail_if_gone() override {
    if (gone_.again(waiter_.is_gone(peer_)) && !ready()) waiter_.fail_gone(peer_, what());
  }

 private:
  // A message that the buffer has no room for waits there, unless it never has.
  bool can_begin() const {
    if (waiting_.empty() || mail_.closed_ || mail_.peers_[rank_].following >= kAtATime) return false;
    const size_t bytes = waiting_.front().bytes;
    return mail_.fits(rank_, bytes) || bytes > kInline;
  }
  bool finish() {
    const size_t through = mail_.finish(direct_);
    mail_.peers_[rank_].following -= through;
    return through != 0;
  }

  Mail& mail_;
  const uint32_t rank_;
  std::vector<Direct> direct_;  // whose bytes MPI takes from where they are
  Gone gone_;
};

class Mail::RecvLane final : public Lane {
 public:
  RecvLane(Mail& mail, uint32_t peer, std::optional<Failure>& mismatch)
      : Lane(kElsewhere | peer, mail.waiter_), mail_(mail), rank_(peer), mismatch_(mismatch) {}
  ~RecvLane() override { mail_.drop(direct_); }

  bool done() const override { return waiting_.empty() && direct_.empty(); }

  bool ready() override {
    std::lock_guard<std::mutex> lock(mail_.mutex_);
    mail_.progress();
    if (mail_.finish(direct_) || done()) return true;
    return std::any_of(waiting_.begin(), waiting_.end(), [&](const Transfer& t) { return mine(t); });
  }

  bool step() override {
    std::lock_guard<std::mutex> lock(mail_.mutex_);
    mail_.progress();
    bool moved = mail_.finish(direct_) != 0;
    for (auto t = waiting_.begin(); t != waiting_.end();) {
      if (!mine(*t)) {
        ++t;
        continue;
      }
      take(*t);
      t = waiting_.erase(t);
      moved = true;
    }
    return moved;
  }

  std::string what() const override {
    if (done()) return "a message from rank " + std::to_string(waiter_.name(peer_));
    return describe(direct_.empty() ? waiting_.front() : direct_.front().transfer);
  }
  void fail_if_gone() override {
    if (gone_.again(waiter_.is_gone(peer_)) && direct_.empty() && !ready())
      waiter_.fail_gone(peer_, what());
  }

 private:
  // The next message of the transfer's tag, if it need not be waited for.
  Arrived* mine(const Transfer& t) {
    Arrived* found = mail_.find(rank_, t.tag);
    return found && found->fetching.empty() ? found : nullptr;
  }

  void take(const Transfer& t) {
    Arrived* const found = mine(t);
    const Head head = found->head;
    if (head.bytes != t.bytes) {  // it is kept
      if (!mismatch_) mismatch_ = other_size(t, head.bytes, mail_.network_.hosts().name(
                                                                mail_.network_.hosts().rank()));
      return;
    }
    if (found->data) {
      if (t.bytes) std::memcpy(t.data, found->data.get(), t.bytes);
    } else {
      Direct direct{t, {}};
      mail_.start_bytes(direct.ids, false, t.data, t.bytes, rank_, head.number);
      direct_.push_back(std::move(direct));
    }
    auto& arrived = mail_.peers_[rank_].arrived;
    const auto list = arrived.find(t.tag);
    list->second.pop_front();
    if (list->second.empty()) arrived.erase(list);
  }

  Mail& mail_;
  const uint32_t rank_;
  std::optional<Failure>& mismatch_;
  std::vector<Direct> direct_;  // whose bytes MPI puts where they belong
  Gone gone_;
};

std::unique_ptr<Lane> Mail::send_lane(uint32_t peer) { return std::make_unique<SendLane>(*this, peer); }

std::unique_ptr<Lane> Mail::recv_lane(uint32_t peer, std::optional<Failure>& mismatch) {
  return std::make_unique<RecvLane>(*this, peer, mismatch);
}

}  // namespace blinkrun
