// What ranks of other hosts are told at once: that a rank has left, or has aborted the job.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

#include "hosts.hpp"
#include "mpi.hpp"
#include "waiting.hpp"

namespace blinkrun {

class Alarms : public Elsewhere {
 public:
  Alarms(const MpiConfig& mpi, const Hosts& hosts, Waiter& waiter);

  void look() override;  // take what has come; from any thread
  bool is_gone(uint32_t rank) override;
  bool has_left(uint32_t rank) const { return left_ns_[rank].load(std::memory_order_acquire); }
  void aborted(const AbortRecord& record) override;  // this rank has recorded it: tell all
  std::string names(const std::vector<uint32_t>& ranks) const override;
  int32_t name(uint32_t rank) const override { return hosts_.name(rank); }
  void leave();  // tell all; harmless when told before
  bool all_left();
  void close();  // no more messages

 private:
  struct Alarm {
    uint32_t kind;  // AbortKind; kNone: has left
    uint32_t from;
    int32_t rank, about;  // names, as in AbortRecord
    char text[kAbortText];
  };
  struct Told {
    Alarm alarm;
    std::vector<Messages::Id> ids;
  };
  static constexpr size_t kHeadBytes = sizeof(Alarm) - kAbortText;

  void tell(const Alarm& alarm, size_t bytes);
  void progress();
  void take(const Alarm& alarm);
  void take_news(std::vector<Alarm>& news);

  const Hosts& hosts_;
  Waiter& waiter_;
  std::vector<std::atomic<uint64_t>> left_ns_;  // when it was heard of; 0: not yet
  std::mutex mutex_;
  Standing standing_;  // outlives what MPI brings to it
  Messages messages_;
  std::deque<Told> told_;
  bool leaves_ = false, closed_ = false;
};

}  // namespace blinkrun
