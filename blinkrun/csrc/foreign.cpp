// TensorFlow's kernels: their inputs as numpy arrays, numpy arrays as their results.
//
// Its C interface is called by address, so nothing of TensorFlow is needed to build this.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
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
};
const std::vector<std::string> names{
    "TF_NewStatus", "TF_DeleteStatus", "TF_GetCode",    "TF_Message",
    "TF_GetInput",  "TF_SetOutput",    "TF_NewTensor",  "TF_DeleteTensor",
    "TF_TensorData", "TF_NumDims",     "TF_Dim"};
Functions tensorflow{};

void set_functions(const std::vector<uintptr_t>& addresses) {
  static_assert(sizeof(Functions) == 11 * sizeof(uintptr_t));
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

using Callback = std::function<void()>;

}  // namespace

void bind_foreign(py::module_& m) {
  m.attr("KERNEL_FUNCTIONS") = names;
  m.def("set_kernel_functions", &set_functions);
  m.def("kernel_inputs", &kernel_inputs);
  m.def("kernel_results", &kernel_results);
  m.def("reclaim", &reclaim);
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
