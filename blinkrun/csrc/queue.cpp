#include "queue.hpp"

#include <csignal>

namespace blinkrun {

void Job::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return done_; });
  if (error_) std::rethrow_exception(error_);
}

bool Job::wait_for(std::chrono::milliseconds time) const {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return done_; });
}

bool Job::done() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

void Job::finish(std::exception_ptr error) {
  std::lock_guard<std::mutex> lock(mutex_);
  error_ = error;
  done_ = true;
  changed_.notify_all();
}

Queue::~Queue() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Job> Queue::submit(const Call& call) {
  auto job = std::make_shared<Job>(call);
  std::lock_guard<std::mutex> lock(mutex_);
  if (!thread_.joinable()) {
    sigset_t all, before;  // signals are for the interpreter's threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { serve(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  jobs_.push_back(job);
  changed_.notify_all();
  return job;
}

bool Queue::idle() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return jobs_.empty() && !running_;
}

void Queue::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closed_ || !jobs_.empty(); });
    if (jobs_.empty()) return;  // closed, and every job given before is done
    std::shared_ptr<Job> job = jobs_.front();
    jobs_.pop_front();
    running_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      group_->run(job->call, Caller{[] {}, [] {}, false});
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    running_ = false;
    lock.unlock();
    job->finish(error);
    lock.lock();
  }
}

}  // namespace blinkrun
