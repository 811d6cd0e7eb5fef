// TensorFlow's kernels: their inputs as numpy arrays, numpy arrays as their results.
//
// Its C interface is called by address, so nothing of TensorFlow is needed to build this.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings.hpp"

namespace py = pybind11;

namespace blinkrun {
namespace {

using Release = void (*)(void*, size_t, void*);

// The functions of tensorflow/c that kernels use, in the order of `names`.
struct Functions {
  void* (*new_status)();
  void (*delete_status)(void*);
  int (*code)(const void*);
  const char* (*message)(const void*);
  void (*get_input)(void*, int, void**, void*);
  void (*set_output)(void*, int, const void*, void*);
  void* (*new_tensor)(int, const int64_t*, int, void*, size_t, Release, void*);
  void (*delete_tensor)(void*);
  void* (*data)(const void*);
  int (*num_dims)(const void*);
  int64_t (*dim)(const void*, int);
  void (*set_status)(void*, int, const char*);
  void (*fail)(void*, void*);
  void (*fail_making)(void*, void*);
};
const std::vector<std::string> names{
    "TF_NewStatus", "TF_DeleteStatus", "TF_GetCode",    "TF_Message",
    "TF_GetInput",  "TF_SetOutput",    "TF_NewTensor",  "TF_DeleteTensor",
    "TF_TensorData", "TF_NumDims",     "TF_Dim",        "TF_SetStatus",
    "TF_OpKernelContext_Failure",      "TF_OpKernelConstruction_Failure"};
Functions tensorflow{};

void set_functions(const std::vector<uintptr_t>& addresses) {
  static_assert(sizeof(Functions) == 14 * sizeof(uintptr_t));
  if (addresses.size() != names.size()) throw std::invalid_argument("one address for each name");
  std::memcpy(&tensorflow, addresses.data(), sizeof tensorflow);
}

class Status {
 public:
  Status() : status_(tensorflow.new_status()) {}
  ~Status() { tensorflow.delete_status(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  void* get() { return status_; }
  void check() {
    if (tensorflow.code(status_) != 0) throw std::runtime_error(tensorflow.message(status_));
  }

 private:
  void* status_;
};

// ---- inputs ------------------------------------------------------------------------------------

std::vector<py::ssize_t> shape_of(const void* tensor) {
  std::vector<py::ssize_t> shape(size_t(tensorflow.num_dims(tensor)));
  for (size_t d = 0; d < shape.size(); ++d) shape[d] = tensorflow.dim(tensor, int(d));
  return shape;
}

// Read-only arrays on the inputs' memory, which stays while they are referred to.
py::list kernel_inputs(uintptr_t context, const std::vector<py::dtype>& dtypes) {
  Status status;
  py::list arrays;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    void* tensor = nullptr;
    tensorflow.get_input(reinterpret_cast<void*>(context), int(i), &tensor, status.get());
    status.check();
    py::capsule owner(tensor, [](void* owned) { tensorflow.delete_tensor(owned); });
    py::array array(dtypes[i], shape_of(tensor), tensorflow.data(tensor), owner);
    array.attr("flags").attr("writeable") = false;
    arrays.append(std::move(array));
  }
  return arrays;
}

// ---- results -----------------------------------------------------------------------------------

// An array whose memory TensorFlow uses. It comes back in any thread, without Python, perhaps after
// the interpreter has ended; so it waits in a list until a thread of Python looks.
struct Loan {
  py::object array;
  Loan* next = nullptr;
};
std::atomic<Loan*> returned{nullptr};
std::atomic<int64_t> lent{0};

void give_back(void*, size_t, void* argument) {
  auto* loan = static_cast<Loan*>(argument);
  loan->next = returned.load(std::memory_order_relaxed);
  while (!returned.compare_exchange_weak(loan->next, loan, std::memory_order_release,
                                         std::memory_order_relaxed)) {
  }
}

// Lets go of what has come back; how many arrays are still lent.
int64_t reclaim() {
  Loan* loan = returned.exchange(nullptr, std::memory_order_acquire);
  while (loan != nullptr) {
    delete std::exchange(loan, loan->next);
    --lent;
  }
  return lent;
}

// Gives contiguous arrays as results; memory that starts at a multiple of 64 is not copied.
void kernel_results(uintptr_t context, const std::vector<py::array>& arrays,
                    const std::vector<int>& types) {
  reclaim();
  Status status;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const py::array& array = arrays[i];
    const std::vector<int64_t> dims(array.shape(), array.shape() + array.ndim());
    ++lent;
    void* tensor = tensorflow.new_tensor(types.at(i), dims.data(), int(dims.size()),
                                         const_cast<void*>(array.data()), size_t(array.nbytes()),
                                         &give_back, new Loan{array});
    if (tensor == nullptr) throw std::runtime_error("TensorFlow takes no result of this size");
    tensorflow.set_output(reinterpret_cast<void*>(context), int(i), tensor, status.get());
    tensorflow.delete_tensor(tensor);
    status.check();
  }
}

// ---- runs --------------------------------------------------------------------------------------

using Callback = std::function<void()>;

constexpr int kCancelled = 1;  // TF_CANCELLED
py::object* on_make = nullptr;  // never freed: kernels may be made and run after Python's end
py::object* on_run = nullptr;
std::atomic<bool> closed{false};
std::atomic<int> inside{0};  // threads of TensorFlow that are on their way into Python, or there

// Whether a thread of TensorFlow may go into Python; it must not once the interpreter is ending.
class Entry {
 public:
  Entry() { inside.fetch_add(1); }
  ~Entry() { inside.fetch_sub(1); }
  bool is_open() const { return !closed.load(); }
};

void cancel(void (*fail)(void*, void*), void* context) {
  Status status;
  tensorflow.set_status(status.get(), kCancelled, "the process is ending");
  fail(context, status.get());
}

// Makes a kernel; returns the number that Python gives it.
void* make_kernel(void* construction) {
  Entry entry;
  if (!entry.is_open()) {
    cancel(tensorflow.fail_making, construction);
    return nullptr;
  }
  py::gil_scoped_acquire gil;
  try {
    return reinterpret_cast<void*>(
        (*on_make)(reinterpret_cast<uintptr_t>(construction)).cast<uintptr_t>());
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("make_kernel");
    return nullptr;
  }
}

// Runs a kernel. TensorFlow's callback is gone when this returns; so it is moved to one that lasts.
void run_kernel(void* kernel, void* context, void* done) {
  Entry entry;
  auto* callback = static_cast<Callback*>(done);
  if (!entry.is_open()) {
    cancel(tensorflow.fail, context);
    (*callback)();
    return;
  }
  auto* taken = new Callback(std::move(*callback));
  py::gil_scoped_acquire gil;
  try {
    (*on_run)(reinterpret_cast<uintptr_t>(kernel), reinterpret_cast<uintptr_t>(context),
              reinterpret_cast<uintptr_t>(taken));
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("run_kernel");
  }
}

// Lets no thread of TensorFlow into Python any more, and waits for those that are there.
void close_kernels() {
  closed = true;
  py::gil_scoped_release release;
  for (int i = 0; i < 10000 && inside.load() != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

void bind_foreign(py::module_& m) {
  m.attr("KERNEL_FUNCTIONS") = names;
  m.def("set_kernel_functions", &set_functions);
  m.def("kernel_inputs", &kernel_inputs);
  m.def("kernel_results", &kernel_results);
  m.def("reclaim", &reclaim);
  m.def("kernel_callbacks", [](py::object make, py::object run) {
    on_make = new py::object(std::move(make));
    on_run = new py::object(std::move(run));
    return py::make_tuple(reinterpret_cast<uintptr_t>(&make_kernel),
                          reinterpret_cast<uintptr_t>(&run_kernel));
  });
  m.def("close_kernels", &close_kernels);
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
