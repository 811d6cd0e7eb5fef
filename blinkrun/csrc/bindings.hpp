// What the bindings share: the GIL, signals, and the object that Python holds.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "group.hpp"
#include "queue.hpp"

namespace blinkrun {

// How often this process and those before it were forked; module.cpp counts.
inline std::atomic<uint32_t> forks{0};

// Releases the GIL when first asked to, takes it back at the end of the scope.
class Gil {
 public:
  void release() {
    if (!state_) state_ = PyEval_SaveThread();
  }
  // The interpreter's end unwinds other threads that come back to it. Destructors let that not pass,
  // which would end the process with an error: such a thread stays here as long as there is one.
  void take() {
    if (!state_) return;
    try {
      PyEval_RestoreThread(std::exchange(state_, nullptr));
    } catch (abi::__forced_unwind&) {
      for (;;) pause();
    }
  }
  // A signal's handler must not wait for other ranks; throws what it raises.
  void look() {
    take();
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    release();
  }
  Caller caller(bool may_spin) {
    return Caller{[this] { release(); }, [this] { look(); }, may_spin};
  }
  Gil() = default;
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  ~Gil() { take(); }

 private:
  PyThreadState* state_ = nullptr;
};

// Has released the GIL, up to the end of the scope.
class WithoutGil {
 public:
  WithoutGil() { gil_.release(); }

 private:
  Gil gil_;
};

// What Python holds: the group, and its queue.
struct Handle {
  std::shared_ptr<Group> group;
  std::unique_ptr<Queue> queue;
  const uint32_t joined_after = forks.load();

  // False in a child of the process that joined: it shares the memory, but is no rank.
  bool is_ours() const { return forks.load(std::memory_order_relaxed) == joined_after; }
  ~Handle() {
    if (is_ours()) return;
    (void)queue.release();  // its thread has stayed with the parent, and so have those of the group
    new std::shared_ptr<Group>(std::move(group));
  }
  void refuse_after_fork() const {
    if (!is_ours())
      throw std::runtime_error(
          "this process was forked from a rank after blinkrun.init(); only the rank itself may call "
          "collectives");
  }
  void run(const Call& call, bool may_spin = true);
  std::shared_ptr<Job> submit(const Call& call);

 private:
  void interrupted();
};

void bind_journal(pybind11::class_<Handle>& group);
void bind_p2p(pybind11::class_<Handle>& group);
void bind_packing(pybind11::module_& m);
void bind_foreign(pybind11::module_& m);
void bind_proxy(pybind11::module_& m);
void bind_watchdog(pybind11::module_& m);

// Of what `native.wire_words` makes of a wire.
MpiConfig mpi_config(const std::map<std::string, int64_t>& wire);

}  // namespace blinkrun
