#include "rounds.hpp"

#include <algorithm>

namespace blinkrun {

bool Rounds::must_send(bool has_data) const {
  const uint64_t begun = *std::max_element(got_.begin(), got_.end());
  const uint64_t mine = got_[host_];
  return (mine < begun || has_data) && mine - taken_ < kAhead;
}

bool Rounds::complete() const {
  return std::none_of(batches_.begin(), batches_.end(), [](auto& each) { return each.empty(); });
}

std::vector<Batch> Rounds::take() {
  std::vector<Batch> round;
  for (auto& each : batches_) {
    round.push_back(std::move(each.front()));
    each.pop_front();
  }
  ++taken_;
  return round;
}

bool Rounds::under_way() const {
  return std::any_of(batches_.begin(), batches_.end(), [](auto& each) { return !each.empty(); });
}

std::vector<uint32_t> Rounds::missing() const {
  std::vector<uint32_t> hosts;
  if (!under_way()) return hosts;
  for (uint32_t host = 0; host < batches_.size(); ++host)
    if (batches_[host].empty()) hosts.push_back(host);
  return hosts;
}

void Rounds::take_up(uint32_t host, Batch batch) {
  batches_[host].push_back(std::move(batch));
  ++got_[host];
}

}  // namespace blinkrun
