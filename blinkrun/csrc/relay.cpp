#include "relay.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <cstring>

namespace blinkrun {

namespace {

// Between two looks at MPI: a part of the time since anything came, so that no wait becomes longer
// than by that part, and one that lasts costs next to nothing.
constexpr uint64_t kShortestNap = 50'000, kLongestNap = 2'000'000, kNapPart = 32;
constexpr unsigned long kSlack = 1'000;  // by which the kernel may prolong a nap; 50 us by default
const Caller kNobody{[] {}, [] {}, false};

}  // namespace

Relay::Relay(Journal& journal, OutgoingControl& outgoing, Network& network, Waiter& waiter)
    : journal_(journal), outgoing_(outgoing), network_(network), waiter_(waiter),
      messages_(network.mpi()), rounds_(network.hosts().num_hosts(), network.hosts().host()),
      peers_(network.hosts().num_hosts()), moved_ns_(now_ns()) {
  const Hosts& hosts = network.hosts();
  for (uint32_t host = 0; host < peers_.size(); ++host) {
    if (host == hosts.host()) continue;
    Peer& peer = peers_[host];
    peer.leader = hosts.leader(host);
    peer.buffer.resize(kBatch);
    peer.receiving = messages_.recv(peer.buffer.data(), kBatch, peer.leader, kJournalTag);
  }
  thread_ = std::thread([this] { serve(); });
}

void Relay::stop() {
  stopping_ = true;
  ring(outgoing_.relay.bell);
  if (thread_.joinable()) thread_.join();
  std::lock_guard<std::mutex> lock(turn_mutex_);
  if (messages_.abandon()) return;
  keep_for_mpi(peers_);
  keep_for_mpi(sent_);
}

void Relay::help() {
  std::unique_lock<std::mutex> lock(turn_mutex_, std::try_to_lock);
  if (lock.owns_lock() && !stopping_) turn();
}

void Relay::serve() {
  prctl(PR_SET_TIMERSLACK, kSlack);
  try {
    while (!stopping_ && !waiter_.aborted()) {
      uint64_t quiet_ns;
      {
        std::lock_guard<std::mutex> lock(turn_mutex_);
        turn();
        const uint64_t now = now_ns();
        check_late(now);
        quiet_ns = now - moved_ns_;
      }
      sleep(quiet_ns);
    }
  } catch (const Failure& failure) {
    waiter_.abort(AbortKind::kAborted, -1, failure.text);  // unless that is what it says
  }
}

// A post ends it at once, if it can be sent.
void Relay::sleep(uint64_t quiet_ns) {
  BellLine& line = outgoing_.relay;
  line.asleep.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t bell = line.bell.load(std::memory_order_seq_cst);
  if (!(may_send_ && has_data()) && !stopping_)
    futex_wait(line.bell, bell, std::clamp(quiet_ns / kNapPart, kShortestNap, kLongestNap));
  line.asleep.fetch_sub(1, std::memory_order_seq_cst);
}

// One look at everything; never waits. The mutex is held.
bool Relay::turn() {
  bool moved = false;
  for (bool more = true; more; moved |= more) {
    messages_.progress();
    forget_sent();
    more = receive();
    more |= send();
    more |= deliver();
  }
  may_send_ = delivering_.empty() && rounds_.must_send(true);
  if (moved) moved_ns_ = now_ns();
  return moved;
}

bool Relay::receive() {
  bool any = false;
  for (uint32_t host = 0; host < peers_.size(); ++host) {
    Peer& peer = peers_[host];
    size_t bytes = 0;
    if (host == network_.hosts().host() || !messages_.finish(peer.receiving, &bytes)) continue;
    const char* data = peer.buffer.data();
    rounds_.arrived(host, std::make_shared<const std::vector<char>>(data, data + bytes));
    peer.receiving = messages_.recv(peer.buffer.data(), kBatch, peer.leader, kJournalTag);
    any = true;
  }
  return any;
}

void Relay::forget_sent() {
  sent_.erase(std::remove_if(sent_.begin(), sent_.end(),
                             [&](const Sent& each) { return messages_.finish(each.id); }),
              sent_.end());
}

bool Relay::send() {
  bool any = false;
  // What there is no room for here must not come: other hosts wait for this one then.
  while (delivering_.empty() && rounds_.must_send(has_data())) {
    const Batch batch = next_batch();
    for (uint32_t host = 0; host < peers_.size(); ++host)
      if (host != network_.hosts().host())
        sent_.push_back({messages_.send(batch->data(), batch->size(), peers_[host].leader, kJournalTag),
                         batch});
    rounds_.sent(batch);
    any = true;
  }
  return any;
}

// Take as many whole pieces as fit, of what this host's ranks have posted.
Batch Relay::next_batch() {
  Ring& from = *journal_.outgoing_;
  const uint64_t start = outgoing_.read.load(std::memory_order_relaxed), end = from.end();
  uint64_t at = start;
  while (at < end) {
    const uint64_t next = at + Ring::room_of(from.head_at(at));
    if (next - start > kBatch) break;
    at = next;
  }
  auto batch = std::make_shared<std::vector<char>>(at - start);
  from.copy(start, batch->data(), batch->size());
  outgoing_.read.store(at, std::memory_order_seq_cst);
  if (from.room().asleep.load(std::memory_order_seq_cst)) ring(from.room().bell);
  return batch;
}

// Put what all hosts have said into the ring of this one, as far as there is room.
bool Relay::deliver() {
  bool any = false;
  if (delivering_.empty() && rounds_.complete()) {
    for (Batch& batch : rounds_.take())
      if (!batch->empty()) delivering_.push_back(std::move(batch));
    any = true;
  }
  const auto check = [this] {
    if (waiter_.aborted()) waiter_.throw_aborted();
  };
  while (!delivering_.empty()) {
    const std::vector<char>& batch = *delivering_.front();
    PieceHead head;
    std::memcpy(&head, batch.data() + delivered_, sizeof head);
    if (!journal_.deliver(head, batch.data() + delivered_ + sizeof head, kNobody, check)) break;
    any = true;
    delivered_ += Ring::room_of(head);
    if (delivered_ < batch.size()) continue;
    delivering_.pop_front();
    delivered_ = 0;
  }
  return any;
}

// Look for what does not come: batches of other hosts, or room that a rank of this one leaves.
void Relay::check_late(uint64_t now) {
  if (now - looked_ns_ < Waiter::kLook) return;
  looked_ns_ = now;
  const bool is_late = now - moved_ns_ > waiter_.timeout_ns();
  if (!delivering_.empty()) {
    const std::vector<uint32_t> slow = journal_.in_the_way();
    if (is_late && !slow.empty()) waiter_.fail_late(slow, "the journal, which is full,");
  } else if (is_late && rounds_.under_way()) {
    std::vector<uint32_t> ranks;
    for (uint32_t host : rounds_.missing())
      for (uint32_t rank : network_.hosts().ranks(host)) ranks.push_back(rank);
    network_.fail_late(ranks, "the journal");
  }
}

}  // namespace blinkrun
