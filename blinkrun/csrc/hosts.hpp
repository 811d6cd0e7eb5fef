// Who is where, in a job on several hosts. A rank is its number among all, unless said otherwise.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace blinkrun {

class Hosts {
 public:
  Hosts() = default;  // one host
  Hosts(uint32_t rank, std::vector<int32_t> names, std::vector<uint32_t> host_of,
        std::vector<std::string> host_names)
      : rank_(rank), names_(std::move(names)), host_of_(std::move(host_of)),
        host_names_(std::move(host_names)), ranks_(host_names_.size()), indices_(host_of_.size()) {
    if (host_of_.size() != names_.size() || rank_ >= names_.size())
      throw std::invalid_argument("hosts and names are of another number of ranks");
    for (uint32_t r = 0; r < size(); ++r) {
      if (host_of_[r] >= num_hosts()) throw std::invalid_argument("a rank's host has no name");
      indices_[r] = uint32_t(ranks_[host_of_[r]].size());
      ranks_[host_of_[r]].push_back(r);
    }
    for (const auto& ranks : ranks_)
      if (ranks.empty()) throw std::invalid_argument("a host has no rank");
  }

  bool several() const { return num_hosts() > 1; }
  uint32_t rank() const { return rank_; }  // this one
  uint32_t size() const { return uint32_t(names_.size()); }
  uint32_t num_hosts() const { return uint32_t(host_names_.size()); }
  uint32_t host() const { return host_of_[rank_]; }
  uint32_t host_of(uint32_t rank) const { return host_of_[rank]; }
  bool is_here(uint32_t rank) const { return host_of_[rank] == host(); }
  const std::vector<uint32_t>& ranks(uint32_t host) const { return ranks_[host]; }  // ascending
  const std::vector<uint32_t>& here() const { return ranks_[host()]; }  // by their local index
  uint32_t index(uint32_t rank) const { return indices_[rank]; }        // on its own host
  uint32_t leader(uint32_t host) const { return ranks_[host].front(); }  // talks to other hosts
  bool leads() const { return leader(host()) == rank_; }
  int32_t name(uint32_t rank) const { return names_[rank]; }
  const std::string& host_name(uint32_t host) const { return host_names_[host]; }

 private:
  uint32_t rank_ = 0;
  std::vector<int32_t> names_;
  std::vector<uint32_t> host_of_;
  std::vector<std::string> host_names_;
  std::vector<std::vector<uint32_t>> ranks_;
  std::vector<uint32_t> indices_;
};

}  // namespace blinkrun
