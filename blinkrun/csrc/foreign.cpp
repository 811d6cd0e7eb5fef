// What code that knows nothing of Python calls, or wants to be called: TensorFlow's kernels.
#include <pybind11/pybind11.h>

#include <atomic>
#include <functional>
#include <utility>

#include "bindings.hpp"

namespace py = pybind11;

namespace blinkrun {
namespace {

// Says that lent memory is no longer used: sets a word that the lender looks at. It may be called in
// any thread, and after the interpreter has ended.
extern "C" void give_back(void*, size_t, void* word) {
  static_cast<std::atomic<int32_t>*>(word)->store(1, std::memory_order_release);
}

using Callback = std::function<void()>;

}  // namespace

void bind_foreign(py::module_& m) {
  m.attr("GIVE_BACK") = reinterpret_cast<uintptr_t>(&give_back);
  // TensorFlow passes asynchronous kernels the address of a std::function that is gone when they
  // return; so it is moved to one that lasts until it is run.
  m.def("take_callback", [](uintptr_t address) {
    return reinterpret_cast<uintptr_t>(
        new Callback(std::move(*reinterpret_cast<Callback*>(address))));
  });
  m.def("run_callback", [](uintptr_t taken) {
    py::gil_scoped_release release;
    auto* callback = reinterpret_cast<Callback*>(taken);
    (*callback)();
    delete callback;
  });
}

}  // namespace blinkrun
