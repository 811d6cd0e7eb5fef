// What the bindings share: the GIL, signals, and the object that Python holds.
#pragma once

#include <pybind11/pybind11.h>

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
  void take() {
    if (state_) PyEval_RestoreThread(std::exchange(state_, nullptr));
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
  ~Gil() {
    if (state_) PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* state_ = nullptr;
};

// What Python holds: the group, and its queue.
struct Handle {
  std::shared_ptr<Group> group;
  std::unique_ptr<Queue> queue;
  const uint32_t joined_after = forks.load();

  // False in a child of the process that joined: it shares the memory, but is no rank.
  bool is_ours() const { return forks.load(std::memory_order_relaxed) == joined_after; }
  ~Handle() {
    if (!is_ours()) (void)queue.release();  // its thread has stayed with the parent
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
