// Which batch of messages a host sends when, so that all hosts take all batches in one order.
//
// Pure: no clock, no messages. There are rounds; in each, every host sends one batch to every other
// host, and when those of all hosts are there they are taken in the order of hosts. A host that has
// something to say begins the next round of its own accord, even while a few others are under way;
// one that gets a batch of a round answers with its own, which may be empty. Nobody coordinates, and
// where nobody has anything to say nothing is sent.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace blinkrun {

using Batch = std::shared_ptr<const std::vector<char>>;

class Rounds {
 public:
  static constexpr uint64_t kAhead = 4;  // rounds in which a host speaks before the first is complete

  Rounds(uint32_t num_hosts, uint32_t host) : host_(host), batches_(num_hosts), got_(num_hosts) {}

  // Whether this host should send its next batch now.
  bool must_send(bool has_data) const;
  uint64_t next_round() const { return got_[host_]; }  // of this host's next batch
  void sent(Batch batch) { take_up(host_, std::move(batch)); }
  void arrived(uint32_t host, Batch batch) { take_up(host, std::move(batch)); }

  bool complete() const;  // the batches of a round are there
  std::vector<Batch> take();  // them, by host
  uint64_t taken() const { return taken_; }  // rounds
  bool under_way() const;
  std::vector<uint32_t> missing() const;  // hosts whose batch the first round under way lacks

 private:
  void take_up(uint32_t host, Batch batch);

  uint32_t host_;
  std::vector<std::deque<Batch>> batches_;  // by host: of rounds that are not complete
  std::vector<uint64_t> got_;               // by host: batches ever
  uint64_t taken_ = 0;
};

}  // namespace blinkrun
