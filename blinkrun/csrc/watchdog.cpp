// Ends the process if a call that cannot be interrupted does not return in time: MPI's start waits
// for every process, without a deadline and with Python's lock held.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "bindings.hpp"

namespace py = pybind11;

namespace blinkrun {
namespace {

class Watchdog {
 public:
  Watchdog(double seconds, std::string text)
      : text_(std::move(text)), thread_([this, seconds] { wait(seconds); }) {}
  ~Watchdog() { stop(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void wait(double seconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    if (changed_.wait_until(lock, deadline, [this] { return over_; })) return;
    (void)!write(STDERR_FILENO, text_.data(), text_.size());
    _exit(1);  // nothing of the process can be asked: its main thread does not return
  }

  const std::string text_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace

void bind_watchdog(py::module_& m) {
  py::class_<Watchdog>(m, "Watchdog").def(py::init<double, std::string>()).def("stop", &Watchdog::stop);
}

}  // namespace blinkrun
