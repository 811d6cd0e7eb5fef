// Calls that run behind the caller's back, in the order in which they were given.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "group.hpp"

namespace blinkrun {

class Job {
 public:
  explicit Job(const Call& call) : call(call) {}
  void wait();  // rethrows what the call threw
  bool wait_for(std::chrono::milliseconds time) const;  // whether it is done
  bool done() const;
  void finish(std::exception_ptr error);

  const Call call;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

// One helper thread, started with the first job. It sleeps when there is nothing to do.
class Queue {
 public:
  explicit Queue(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  ~Queue();
  std::shared_ptr<Job> submit(const Call& call);
  bool idle() const;

 private:
  void serve();

  std::shared_ptr<Group> group_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool running_ = false;  // a job is being run
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace blinkrun
