#include "network.hpp"

#include <algorithm>

namespace blinkrun {

Network::Network(const MpiConfig& mpi, Hosts hosts, Waiter& waiter)
    : mpi_(mpi), hosts_(std::move(hosts)), waiter_(waiter), messages_(mpi),
      alarms_(mpi, hosts_, waiter), entry_(messages_, hosts_) {
  waiter_.know_of(&alarms_);
}

Network::~Network() {
  close();
  waiter_.know_of(nullptr);
}

void Network::fail_late(const std::vector<uint32_t>& ranks, const std::string& what) {
  std::vector<uint32_t> places;
  for (uint32_t rank : ranks) places.push_back(place(rank));
  waiter_.fail_late(places, what);
}

void Network::fail_closed() {
  throw Failure{Failure::Kind::kMpi,
                "this rank sends nothing any more: it has left, or MPI was finalised before blinkrun.shutdown()",
                {}};
}

bool Network::progress() {
  if (!messages_.progress()) return false;
  nap_ns_ = kFirstNap;
  return true;
}

uint64_t Network::nap_ns() {
  const uint64_t nap = nap_ns_;
  nap_ns_ = std::min(nap_ns_ * 3 / 2, kLongestNap);
  return nap;
}

WaitConfig Network::wait_config(WaitConfig host, bool may_spin) {
  return WaitConfig{may_spin ? host.spins : 0, std::min(host.yield_ns, kYield)};
}

void Network::abandon() { messages_.abandon(); }

void Network::close() {
  if (closed_.exchange(true)) return;
  left_behind_ = !messages_.abandon();
  if (left_behind_) entry_.keep();
  alarms_.close();
}

}  // namespace blinkrun
