#include "mail.hpp"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace blinkrun {

namespace {

// Between two looks at what is on its way: a part of the time since anything moved.
constexpr uint64_t kShortestNap = 50'000, kLongestNap = 2'000'000, kNapPart = 32;
constexpr unsigned long kSlack = 1'000;        // by which the kernel may prolong a nap
constexpr uint64_t kPatience = 1'000'000'000;  // at the end, for what others have not received yet

int tag_of(uint32_t number) { return kPairTag + int(number % kPairTags); }

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

Mail::Went Mail::finish(Directs& list) {
  Went went;
  for (auto each = list.begin(); each != list.end();) {
    const size_t before = each->ids.size();
    through(each->ids);
    went.moved |= each->ids.size() < before;
    go_on(*each);
    if (!each->ids.empty()) {
      ++each;
      continue;
    }
    forget(*each);
    each = list.erase(each);
    ++went.through;
  }
  return went;
}

// A caller that ends in the middle of messages takes its memory with it: what MPI is moving there
// gets the time that it needs.
void Mail::drop(Directs& list) {
  if (list.empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  for (Direct& each : list) forget(each);
  if (closed_) return;
  Ids ids;
  for (Direct& each : list) ids.insert(ids.end(), each.ids.begin(), each.ids.end());
  for (Messages::Id id : ids) messages_.cancel(id);
  try {
    for (const uint64_t start = now_ns(); !through(ids) && now_ns() - start < kGrace; nap(kShortestNap))
      progress();
  } catch (const Failure&) {  // why it ends has been said
  }
  for (Messages::Id id : ids) messages_.drop(id);
}

void Mail::begin(Directs& list, const Transfer& transfer, uint32_t number) {
  begin_rest(transfer.sends, transfer.peer, number);
  list.push_back({transfer, number, 0, {}});
  latest(transfer)[tag_of(number)] = &list.back();
  go_on(list.back());
}

// Start the next parts of a message.
void Mail::go_on(Direct& direct, size_t most) {
  const Transfer& t = direct.transfer;
  const int tag = tag_of(direct.number);
  while (direct.begun < t.bytes && direct.ids.size() < most) {
    char* const at = t.data + direct.begun;
    const size_t part = std::min(t.bytes - direct.begun, kPart);
    direct.ids.push_back(t.sends ? messages_.send(at, part, t.peer, tag)
                                 : messages_.recv(at, part, t.peer, tag));
    direct.begun += part;
  }
}

// Before the bytes of a message: all parts of an earlier one that has its tag, for those of one tag
// are in order.
void Mail::begin_rest(bool sends, uint32_t peer, uint32_t number) {
  auto& latest = sends ? peers_[peer].sending : peers_[peer].receiving;
  const auto found = latest.find(tag_of(number));
  if (found != latest.end()) go_on(*found->second, SIZE_MAX);
}

void Mail::forget(Direct& direct) {
  auto& latest = this->latest(direct.transfer);
  const auto found = latest.find(tag_of(direct.number));
  if (found != latest.end() && found->second == &direct) latest.erase(found);
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
  Peer& peer = peers_[head.sender];
  const bool is_here = arrived.data != nullptr;
  auto& list = peer.arrived[head.tag];
  list.push_back(std::move(arrived));
  if (is_here) return;
  // Of two messages with one tag MPI gives the first to whoever asks first: that one must be asked
  // for now, though nobody wants it yet.
  Arrived*& unasked = peer.unasked[tag_of(list.back().head.number)];
  if (Arrived* const first = std::exchange(unasked, nullptr)) ask(list.back().head.sender, *first);
  unasked = &list.back();
}

// Let the bytes of a message come into memory of ours.
void Mail::ask(uint32_t peer, Arrived& arrived) {
  const Head& head = arrived.head;
  arrived.data.reset(new char[head.bytes]);
  start_bytes(arrived.fetching, false, arrived.data.get(), head.bytes, peer, head.number);
}

bool Mail::fits(uint32_t peer, size_t bytes) const {
  return peers_[peer].buffered + kLetter + bytes <= kMailBuffer;
}

void Mail::start_bytes(Ids& ids, bool sends, char* data, size_t bytes, uint32_t peer, uint32_t number) {
  begin_rest(sends, peer, number);
  const int tag = tag_of(number);
  for (size_t at = 0; at < bytes; at += kPart) {
    const size_t part = std::min(bytes - at, kPart);
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
void Mail::send_direct(Directs& list, const Transfer& t) {
  const uint32_t peer = t.peer;
  Peer& to = peers_[peer];
  const Head head{t.tag, t.bytes, to.next++, network_.hosts().rank()};
  Sent sent{peer, std::unique_ptr<char[]>(new char[sizeof head]), sizeof head, false, {}};
  std::memcpy(sent.data.get(), &head, sizeof head);
  sent.ids.push_back(messages_.send(sent.data.get(), sizeof head, peer, kPairHeadTag));
  to.buffered += sizeof head;
  sent_.push_back(std::move(sent));
  begin(list, t, head.number);
  ++to.following;
}

Mail::Arrived* Mail::find(uint32_t peer, int64_t tag) {
  const auto found = peers_[peer].arrived.find(tag);
  return found == peers_[peer].arrived.end() ? nullptr : &found->second.front();
}

bool Mail::has(uint32_t peer, int64_t tag) {
  std::lock_guard<std::mutex> lock(mutex_);
  progress();
  Arrived* const found = find(peer, tag);
  return found && found->data && through(found->fetching);
}

bool Mail::fetch(uint32_t peer, int64_t tag) {
  std::lock_guard<std::mutex> lock(mutex_);
  progress();
  Arrived* const found = find(peer, tag);
  if (!found) return false;
  if (!found->data) {
    peers_[peer].unasked.erase(tag_of(found->head.number));
    ask(peer, *found);
  }
  return !through(found->fetching);
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
  if (messages_.abandon()) return;
  keep_for_mpi(letters_);
  keep_for_mpi(sent_);
  for (Peer& peer : peers_) keep_for_mpi(peer.arrived);
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
    finish();
    return moved_ || done() || can_begin();
  }

  bool step() override {
    std::lock_guard<std::mutex> lock(mail_.mutex_);
    mail_.progress();
    finish();
    bool moved = std::exchange(moved_, false);
    for (; can_begin(); waiting_.pop_front()) {
      const Transfer& t = waiting_.front();
      if (mail_.fits(rank_, t.bytes)) {
        mail_.send_buffered(rank_, t);
      } else {
        mail_.send_direct(direct_, t);
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
  void finish() {
    const Went went = mail_.finish(direct_);
    mail_.peers_[rank_].following -= went.through;
    moved_ |= went.moved;
  }

  Mail& mail_;
  const uint32_t rank_;
  Directs direct_;  // whose bytes MPI takes from where they are
  bool moved_ = false;  // since the last step
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
    moved_ |= mail_.finish(direct_).moved;
    if (moved_ || done()) return true;
    return std::any_of(waiting_.begin(), waiting_.end(), [&](const Transfer& t) { return mine(t); });
  }

  bool step() override {
    std::lock_guard<std::mutex> lock(mail_.mutex_);
    mail_.progress();
    bool moved = mail_.finish(direct_).moved || moved_;
    moved_ = false;
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
    Arrived* const found = mail_.closed_ ? nullptr : mail_.find(rank_, t.tag);
    return found && mail_.through(found->fetching) ? found : nullptr;
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
      mail_.peers_[rank_].unasked.erase(tag_of(head.number));
      mail_.begin(direct_, t, head.number);
    }
    auto& arrived = mail_.peers_[rank_].arrived;
    const auto list = arrived.find(t.tag);
    list->second.pop_front();
    if (list->second.empty()) arrived.erase(list);
  }

  Mail& mail_;
  const uint32_t rank_;
  std::optional<Failure>& mismatch_;
  Directs direct_;  // whose bytes MPI puts where they belong
  bool moved_ = false;  // since the last step
  Gone gone_;
};

std::unique_ptr<Lane> Mail::send_lane(uint32_t peer) { return std::make_unique<SendLane>(*this, peer); }

std::unique_ptr<Lane> Mail::recv_lane(uint32_t peer, std::optional<Failure>& mismatch) {
  return std::make_unique<RecvLane>(*this, peer, mismatch);
}

}  // namespace blinkrun
