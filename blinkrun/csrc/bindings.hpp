// What the bindings share: the GIL, signals, and the object that Python holds.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <utility>

#include "group.hpp"
#include "queue.hpp"

namespace blinkrun {

// Whether this process is a child of the one that joined; module.cpp sets it.
inline std::atomic<bool> forked{false};

inline void refuse_after_fork() {
  if (forked.load(std::memory_order_relaxed))
    throw std::runtime_error(
        "this process was forked from a rank after blinkrun.init(); only the rank itself may call "
        "collectives");
}

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

  void run(const Call& call, bool may_spin = true);
  std::shared_ptr<Job> submit(const Call& call);

 private:
  void interrupted();
};

void bind_journal(pybind11::class_<Handle>& group);
void bind_p2p(pybind11::class_<Handle>& group);
void bind_packing(pybind11::module_& m);

}  // namespace blinkrun
