// The part of a group that knows of other hosts: who is there, what they tell, messages under way.
//
// Ranks are numbers among all, unless said otherwise.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "alarms.hpp"
#include "control.hpp"
#include "entry.hpp"
#include "hosts.hpp"
#include "mpi.hpp"
#include "waiting.hpp"

namespace blinkrun {

class Network {
 public:
  Network(const MpiConfig& mpi, Hosts hosts, Waiter& waiter);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  const Hosts& hosts() const { return hosts_; }
  const MpiConfig& mpi() const { return mpi_; }  // for `Messages` of one's own, with other tags
  Messages& messages() { return messages_; }     // of calls: one thread at a time
  Alarms& alarms() { return alarms_; }
  Entry& entry() { return entry_; }

  // What a `Waiter` calls a rank: its index on this host, or one that is elsewhere.
  uint32_t place(uint32_t rank) const {
    return hosts_.is_here(rank) ? hosts_.index(rank) : kElsewhere | rank;
  }

  // For those who wait by themselves, from any thread.
  void look() { alarms_.look(); }  // 20 times a second is enough
  bool is_gone(uint32_t rank) { return waiter_.is_gone(place(rank)); }
  [[noreturn]] void fail_gone(uint32_t rank, const std::string& what) {
    waiter_.fail_gone(place(rank), what);
  }
  [[noreturn]] void fail_late(const std::vector<uint32_t>& ranks, const std::string& what);

  // Let MPI work; whether a message got through. Then naps begin anew, short ones.
  bool progress();
  uint64_t nap_ns();  // to the next look: longer and longer, while nothing comes
  // How a rank waits that has messages on their way.
  static WaitConfig wait_config(WaitConfig host, bool may_spin);
  void abandon();  // the messages of calls: the job is aborted
  void close();  // no call to MPI from now on
  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  [[noreturn]] static void fail_closed();
  // Whether MPI may still read or write the memory of a call's messages.
  bool left_behind() const { return left_behind_; }

 private:
  static constexpr uint64_t kFirstNap = 20'000, kLongestNap = 1'000'000;
  static constexpr uint64_t kYield = 100'000;      // of looking before the first nap

  MpiConfig mpi_;
  Hosts hosts_;
  Waiter& waiter_;
  Messages messages_;
  Alarms alarms_;
  Entry entry_;
  uint64_t nap_ns_ = kFirstNap;
  std::atomic<bool> closed_{false};
  bool left_behind_ = false;
};

}  // namespace blinkrun
