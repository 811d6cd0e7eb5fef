#include "entry.hpp"

#include <algorithm>

#include "arena.hpp"
#include "waiting.hpp"

namespace blinkrun {

namespace {

constexpr size_t kLargest = sizeof(Entry::Head) + kEagerBytes;

}  // namespace

Entry::Entry(Messages& messages, const Hosts& hosts) : messages_(messages), hosts_(hosts) {
  if (!hosts_.leads()) return;
  for (uint32_t host = 0; host < hosts_.num_hosts(); ++host) {
    if (host == hosts_.host()) continue;
    peers_.emplace_back();
    peers_.back().host = host;
    peers_.back().leader = hosts_.leader(host);
    peers_.back().in.reset(new char[kLargest]);
  }
  for (Peer& peer : peers_) expect(peer);
}

// A receive is always there before the message: MPI need not keep it elsewhere.
void Entry::expect(Peer& peer) {
  peer.receive = messages_.recv(peer.in.get(), kLargest, peer.leader, kEntryTag);
}

void Entry::begin(uint64_t call, const CallDesc& desc) {
  call_ = call;
  desc_ = desc;
  desc_.input = desc_.output = 0;
  headed_.clear();
  for (Peer& peer : peers_) peer.come = peer.done = peer.begun = peer.sent = false;
}

void Entry::start(Peer& peer, const void* message, size_t bytes) {
  peer.send = messages_.send(message, bytes, peer.leader, kEntryTag);
  peer.begun = true;
  peer.sent = false;
}

void Entry::tell(Peer& peer, Kind kind) {
  peer.out = Head{call_, desc_, kind, 0, 0};
  start(peer, &peer.out, sizeof peer.out);
}

void Entry::send(uint32_t host, char* message, size_t data_bytes) {
  // The same memory may go to several hosts, and must not be written while it does.
  if (std::find(headed_.begin(), headed_.end(), message) == headed_.end()) {
    *reinterpret_cast<Head*>(message) = Head{call_, desc_, Kind::kEager, uint32_t(data_bytes), 0};
    headed_.push_back(message);
  }
  start(peer(host), message, sizeof(Head) + data_bytes);
}

bool Entry::sent(Peer& peer) {
  if (!peer.sent) peer.sent = peer.begun && messages_.finish(peer.send);
  return peer.sent;
}

bool Entry::come(Peer& peer) {
  if (!peer.come) peer.come = messages_.finish(peer.receive, &peer.bytes);
  return peer.come;
}

bool Entry::sent(uint32_t host) { return sent(peer(host)); }

bool Entry::come(uint32_t host) { return come(peer(host)); }

bool Entry::same(const Peer& peer, Kind kind) const {
  if (peer.bytes < sizeof(Head) || head(peer).call != call_)
    throw Failure{Failure::Kind::kMpi,
                  "hosts " + hosts_.host_name(hosts_.host()) + " and " +
                      hosts_.host_name(peer.host) + " are out of step",
                  {}};
  return head(peer).kind == kind && same_call(head(peer).desc, desc_);
}

const char* Entry::take(uint32_t host) {
  Peer& from = peer(host);
  if (!same(from, Kind::kEager)) throw Disagreement{};
  return from.in.get() + sizeof(Head);
}

void Entry::done(uint32_t host) {
  peer(host).done = true;
  expect(peer(host));
}

bool Entry::all_come() {
  bool all = true;
  for (Peer& peer : peers_) all &= come(peer);
  return all;
}

bool Entry::all_sent() {
  bool all = true;
  for (Peer& peer : peers_) all &= !peer.begun || sent(peer);
  return all;
}

std::vector<uint32_t> Entry::missing() {
  std::vector<uint32_t> ranks;
  for (Peer& peer : peers_) {
    if (come(peer)) continue;
    const std::vector<uint32_t>& theirs = hosts_.ranks(peer.host);
    ranks.insert(ranks.end(), theirs.begin(), theirs.end());
  }
  return ranks;
}

bool Entry::meet(bool agree, const Wait& wait) {
  for (Peer& peer : peers_) tell(peer, agree ? Kind::kCall : Kind::kDiffers);
  wait([this] { return all_come() && all_sent(); }, [this] { return missing(); });
  for (Peer& peer : peers_) agree &= same(peer, Kind::kCall);
  for (Peer& peer : peers_)
    if (agree) done(peer.host);
  return agree;
}

// All hosts see that one differs, for each of them gets everyone's head.
std::string Entry::settle(const std::string& here, const Wait& wait) {
  for (Peer& peer : peers_)
    if (!peer.begun) tell(peer, Kind::kDiffers);
  auto missing = [this] { return this->missing(); };
  wait([this] { return all_come() && all_sent(); }, missing);
  std::vector<std::pair<std::string, uint64_t>> said(hosts_.num_hosts());
  said[hosts_.host()] = {here, desc_.scales};
  for (Peer& peer : peers_) {
    if (!peer.done) {
      said[peer.host].second = head(peer).desc.scales;
      expect(peer);
    } else {
      said[peer.host].second = desc_.scales;
    }
    peer.come = false;
    start(peer, here.data(), std::min(here.size(), kLargest));
  }
  wait([this] { return all_come() && all_sent(); }, missing);
  for (Peer& peer : peers_) {
    said[peer.host].first = std::string(peer.in.get(), peer.bytes);
    done(peer.host);
  }
  std::string text;
  for (const auto& [words, scales] : said)
    text += (text.empty() ? " " : "; ") + words + (scales != said[0].second ? " with other scales" : "");
  return text;
}

}  // namespace blinkrun
