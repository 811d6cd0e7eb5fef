// Python bindings: arguments in, errors out, no logic.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <map>
#include <memory>

#include "bindings.hpp"
#include "flat.hpp"

namespace py = pybind11;

namespace blinkrun {
namespace {

// Wait for a job, or until a signal's handler raises.
void wait_for_job(Job& job) {
  for (bool done = false; !done;) {
    {
      WithoutGil released;
      done = job.wait_for(std::chrono::milliseconds(100));
    }
    if (!done && PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  job.wait();
}

}  // namespace

MpiConfig mpi_config(const std::map<std::string, int64_t>& wire) {
  MpiConfig mpi{};
  if (wire.empty()) return mpi;
  mpi.isend = uintptr_t(wire.at("isend"));
  mpi.irecv = uintptr_t(wire.at("irecv"));
  mpi.test = uintptr_t(wire.at("test"));
  mpi.testsome = uintptr_t(wire.at("testsome"));
  mpi.cancel = uintptr_t(wire.at("cancel"));
  mpi.request_free = uintptr_t(wire.at("request_free"));
  mpi.get_count = uintptr_t(wire.at("get_count"));
  mpi.error_string = uintptr_t(wire.at("error_string"));
  mpi.finalized = uintptr_t(wire.at("finalized"));
  mpi.comm = uint64_t(wire.at("comm"));
  mpi.byte = uint64_t(wire.at("byte"));
  mpi.request_null = uint64_t(wire.at("request_null"));
  mpi.request_bytes = uint32_t(wire.at("request_bytes"));
  mpi.status_bytes = uint32_t(wire.at("status_bytes"));
  mpi.piece_bytes = size_t(wire.at("piece_bytes"));
  return mpi;
}

void Handle::run(const Call& call, bool may_spin) {
  refuse_after_fork();
  Gil gil;
  if (queue && !queue->idle()) {  // keep the order of calls
    auto job = queue->submit(call);
    try {
      wait_for_job(*job);
    } catch (const py::error_already_set&) {
      interrupted();
      gil.release();
      while (!job->wait_for(std::chrono::milliseconds(100))) {
      }  // the abort ends it; until then it uses the caller's memory
      gil.take();
      throw;
    }
    return;
  }
  try {
    group->run(call, gil.caller(may_spin));
  } catch (const py::error_already_set&) {
    interrupted();
    throw;
  }
}

// No rank may go on with a call that this one has left in the middle.
void Handle::interrupted() {
  group->abort("rank " + std::to_string(group->name()) + " was interrupted in a collective");
}

std::shared_ptr<Job> Handle::submit(const Call& call) {
  refuse_after_fork();
  if (!queue) queue = std::make_unique<Queue>(group);
  return queue->submit(call);
}

namespace {

Call make_call(int collective, int dtype, int op, int root, uintptr_t input, uintptr_t output,
               uint64_t count, double prescale, double postscale) {
  Call call{};
  if (collective < 0 || collective >= int(Collective::kCount) || dtype < 0 ||
      dtype >= int(DType::kCount) || op < 0 || op >= int(Op::kCount))
    throw std::invalid_argument("collective, dtype or op is out of range");
  call.collective = Collective(collective);
  call.dtype = DType(dtype);
  call.op = Op(op);
  call.root = root;
  call.input = reinterpret_cast<const void*>(input);
  call.output = reinterpret_cast<void*>(output);
  call.count = count;
  call.prescale = prescale;
  call.postscale = postscale;
  return call;
}

// ---- the short way for numpy arrays ------------------------------------------------------------

std::array<int8_t, 512> dtype_of_type_num;  // numpy type number -> DType, -1 for none

struct ArrayView {
  char* data;
  uint64_t elements;
  int dtype;
  int flags;
};

bool view_array(PyObject* object, ArrayView& view) {
  const auto& api = py::detail::npy_api::get();
  if (Py_TYPE(object) != (PyTypeObject*)api.PyArray_Type_) return false;
  const auto* array = py::detail::array_proxy(object);
  const int type_num = py::detail::array_descriptor1_proxy(array->descr)->type_num;
  if (type_num < 0 || size_t(type_num) >= dtype_of_type_num.size()) return false;
  view.data = static_cast<char*>(array->data);
  view.dtype = dtype_of_type_num[size_t(type_num)];
  view.flags = array->flags;
  view.elements = 1;
  for (int d = 0; d < array->nd; ++d) view.elements *= uint64_t(array->dimensions[d]);
  constexpr int usable = py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ |
                         py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  // The byte order is native: others have no entry of their own, so ask the descriptor.
  const char order = py::detail::array_descriptor1_proxy(array->descr)->byteorder;
  return view.dtype >= 0 && (view.flags & usable) == usable && order != '>';
}

bool overlaps(const ArrayView& a, const ArrayView& b, size_t item) {
  return a.data < b.data + b.elements * item && b.data < a.data + a.elements * item;
}

// fast(collective, array, out, op, root) -> True if the call was made, False if the arguments
// need the long way (which also explains what is wrong with them).
PyObject* fast_call(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  auto* handle = static_cast<Handle*>(PyCapsule_GetPointer(self, nullptr));
  if (!handle || nargs != 5) Py_RETURN_FALSE;
  ArrayView in{}, out{};
  if (!view_array(args[1], in)) Py_RETURN_FALSE;
  Call call{};
  const long collective = PyLong_AsLong(args[0]), op = PyLong_AsLong(args[3]);
  const long root = PyLong_AsLong(args[4]);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    Py_RETURN_FALSE;
  }
  const bool takes_none = args[2] == Py_None;  // a reduce at another rank than its root
  if (takes_none) {
    if (collective != long(Collective::kReduce) || root == long(handle->group->index()))
      Py_RETURN_FALSE;
    out = in;
    out.data = nullptr;
  } else if (!view_array(args[2], out) || in.dtype != out.dtype ||
             !(out.flags & py::detail::npy_api::NPY_ARRAY_WRITEABLE_)) {
    Py_RETURN_FALSE;
  }
  if (op < 0 || op >= long(Op::kCount)) Py_RETURN_FALSE;
  call.collective = Collective(collective);
  call.op = Op(op);
  call.root = int32_t(root);
  call.dtype = DType(in.dtype);
  const uint64_t size = handle->group->total();
  const bool alltoall = call.collective == Collective::kAlltoall;
  const uint64_t in_blocks = alltoall || call.collective == Collective::kReducescatter ? size : 1;
  const uint64_t out_blocks = alltoall || call.collective == Collective::kAllgather ? size : 1;
  if (in.elements * out_blocks != out.elements * in_blocks || in.elements % in_blocks)
    Py_RETURN_FALSE;
  const bool average_bool = call.op == Op::kAverage && call.dtype == DType::kBool;
  if (average_bool || call.root < 0 || uint64_t(call.root) >= size) Py_RETURN_FALSE;
  if (!takes_none && in.data != out.data && overlaps(in, out, itemsize(call.dtype))) Py_RETURN_FALSE;
  if (in.data == out.data && (alltoall || in.elements != out.elements)) Py_RETURN_FALSE;
  call.count = in.elements / in_blocks;
  call.input = in.data;
  call.output = out.data;
  if (!handle->group->covers(call.collective, call.root)) Py_RETURN_FALSE;
  try {
    handle->run(call);
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  } catch (...) {
    py::detail::try_translate_exceptions();
    return nullptr;
  }
  Py_RETURN_TRUE;
}

PyMethodDef fast_def = {"fast", (PyCFunction)(void*)fast_call, METH_FASTCALL,
                        "fast(collective, array, out, op, root) -> bool"};

py::object make_fast(Handle& handle) {
  py::object capsule = py::reinterpret_steal<py::object>(PyCapsule_New(&handle, nullptr, nullptr));
  return py::reinterpret_steal<py::object>(PyCFunction_New(&fast_def, capsule.ptr()));
}

// ---- memory ------------------------------------------------------------------------------------

py::array_t<uint8_t> arena_array(Handle& handle, size_t bytes) {
  struct Block {
    std::shared_ptr<Group> group;
    size_t offset;
  };
  const size_t offset = handle.group->heap().allocate(bytes);
  if (offset == SIZE_MAX)
    throw std::bad_alloc();
  auto* block = new Block{handle.group, offset};
  py::capsule owner(block, [](void* p) {
    auto* b = static_cast<Block*>(p);
    b->group->heap().release(b->offset);
    delete b;
  });
  auto* data = reinterpret_cast<uint8_t*>(handle.group->arena().data() + offset);
  return py::array_t<uint8_t>(bytes, data, owner);
}

void format_control(int fd, size_t size, size_t num_resources) {
  Mapping memory(fd, Control::bytes(size, num_resources));
  Control control = Control::at(memory.data(), size);
  control.header->magic = kMagic;
  control.header->layout = kLayout;
  control.header->size = uint32_t(size);
  control.header->num_resources = uint32_t(num_resources);
}

std::unique_ptr<Handle> join(uint32_t rank, std::vector<int32_t> names, int control_fd,
                             const std::vector<int>& arena_fds, size_t arena_bytes,
                             double timeout_s, uint32_t spins, double yield_s, size_t chunk_bytes,
                             uint64_t eager_bytes, std::vector<std::vector<uint32_t>> links,
                             std::vector<uint64_t> rates,
                             const std::map<std::string, int64_t>& wire,
                             uint32_t index, std::vector<int32_t> everyone,
                             std::vector<uint32_t> hosts, std::vector<std::string> host_names) {
  const uint32_t size = uint32_t(names.size());
  Mapping control(control_fd, Control::bytes(size, rates.size()));
  const auto* header = Control::at(control.data(), size).header;
  if (header->magic != kMagic || header->layout != kLayout || header->size != size ||
      header->num_resources != rates.size())
    throw std::runtime_error("the ranks of this host run different versions of blinkrun");
  std::vector<Mapping> arenas;
  for (int fd : arena_fds) arenas.push_back(fd < 0 ? Mapping() : Mapping(fd, arena_bytes));
  GroupConfig config{rank, size, std::move(names), timeout_s,
                     WaitConfig{spins, uint64_t(yield_s * 1e9)}, chunk_bytes, eager_bytes,
                     PaceConfig{std::move(links), std::move(rates)}};
  if (host_names.size() > 1) {
    config.hosts = Hosts(index, std::move(everyone), std::move(hosts), std::move(host_names));
    config.mpi = mpi_config(wire);
  }
  auto handle = std::make_unique<Handle>();
  handle->group = std::make_shared<Group>(std::move(config), std::move(control), std::move(arenas));
  return handle;
}

void load_program(Handle& handle, const py::array_t<int32_t, py::array::c_style>& words,
                  uint64_t most_bytes, uint64_t chunk_bytes) {
  Program program = decode_program(words.data(), size_t(words.size()));
  program.most_bytes = most_bytes;
  program.chunk_bytes = chunk_bytes;
  handle.group->load(std::move(program));
}

py::bytes flatten_words(const py::array_t<int32_t, py::array::c_style>& words, uint32_t pieces,
                        uint64_t chunk_bytes) {
  return flatten(decode_program(words.data(), size_t(words.size())), pieces, chunk_bytes);
}

void bind_failures(py::module_& m) {
  static PyObject* failure_type = PyErr_NewException("blinkrun._core.Failure", PyExc_RuntimeError, nullptr);
  m.attr("Failure") = py::reinterpret_borrow<py::object>(failure_type);
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const Failure& f) {
      py::tuple args = py::make_tuple(int(f.kind), f.text, f.ranks);
      PyErr_SetObject(failure_type, args.ptr());
    }
  });
}

}  // namespace
}  // namespace blinkrun

PYBIND11_MODULE(_core, m) {
  using namespace blinkrun;
  m.doc() = "Moves bytes between the ranks of one host; blinkrun.executors.native is its only user.";
  dtype_of_type_num.fill(-1);
  pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  bind_failures(m);
  select_reduce(std::getenv("BLINKRUN_ISA"));
  m.def("isa", &isa_name, "Instruction set of the reduction kernels.");
  m.def("register_dtype", [](int type_num, int dtype) {
    if (type_num >= 0 && size_t(type_num) < dtype_of_type_num.size())
      dtype_of_type_num[size_t(type_num)] = int8_t(dtype);
  }, py::arg("type_num"), py::arg("dtype"), "Tell which numpy type number is which DType.");
  m.def("control_bytes", &Control::bytes, py::arg("size"), py::arg("num_resources") = 0);
  m.def("format_control", &format_control, py::arg("fd"), py::arg("size"),
        py::arg("num_resources") = 0);
  m.def("flatten", &flatten_words, py::arg("words"), py::arg("pieces"), py::arg("chunk_bytes") = 0,
        "A program for devices as the kernel reads it.");
  m.def("device_layout", &device_layout, "Sizes, offsets and limits of device_layout.hpp.");
  m.attr("ARENA_RESERVED") = kHeapStart;
  m.attr("EAGER_AREA") = kEagerBytes;
  m.attr("FLAGS_PER_RANK") = kFlagsPerRank;

  py::class_<Job, std::shared_ptr<Job>>(m, "Job")
      .def("wait", &wait_for_job)
      .def("done", &Job::done);

  bind_packing(m);
  bind_foreign(m);
  bind_proxy(m);
  bind_watchdog(m);
  py::class_<Handle> group(m, "Group");
  bind_journal(group);
  bind_p2p(group);
  group.def(py::init(&join), py::kw_only(), py::arg("rank"), py::arg("names"),
           py::arg("control_fd"), py::arg("arena_fds"), py::arg("arena_bytes"),
           py::arg("timeout_s"), py::arg("spins"), py::arg("yield_s"), py::arg("chunk_bytes"),
           py::arg("eager_bytes"), py::arg("links") = std::vector<std::vector<uint32_t>>(),
           py::arg("rates") = std::vector<uint64_t>(),
           py::arg("wire") = std::map<std::string, int64_t>(),
           py::arg("index") = 0, py::arg("everyone") = std::vector<int32_t>(),
           py::arg("hosts") = std::vector<uint32_t>(),
           py::arg("host_names") = std::vector<std::string>())
      .def("load", &load_program, py::arg("words"), py::arg("most_bytes") = UINT64_MAX,
           py::arg("chunk_bytes") = 0)
      .def("unload", [](Handle& h, int c, int root) { h.group->unload(Collective(c), root); })
      .def("covers", [](Handle& h, int c, int root) { return h.group->covers(Collective(c), root); })
      .def("run", [](Handle& h, int collective, int dtype, int op, int root, uintptr_t input,
                     uintptr_t output, uint64_t count, double prescale, double postscale,
                     bool may_spin) {
        h.run(make_call(collective, dtype, op, root, input, output, count, prescale, postscale), may_spin);
      }, py::arg("collective"), py::arg("dtype"), py::arg("op"), py::arg("root"), py::arg("input"),
           py::arg("output"), py::arg("count"), py::arg("prescale"), py::arg("postscale"),
           py::arg("may_spin") = true)
      .def("submit", [](Handle& h, int collective, int dtype, int op, int root, uintptr_t input,
                        uintptr_t output, uint64_t count, double prescale, double postscale) {
        return h.submit(make_call(collective, dtype, op, root, input, output, count, prescale, postscale));
      })
      .def("fast", &make_fast, py::keep_alive<0, 1>())
      .def("empty", &arena_array, py::arg("nbytes"))
      .def("contains", [](Handle& h, uintptr_t p) {
        return h.group->arena().contains(reinterpret_cast<const void*>(p));
      })
      .def("arena_in_use", [](Handle& h) { return h.group->heap().in_use(); })
      .def("leave", [](Handle& h) {
        WithoutGil released;
        if (h.is_ours()) h.group->leave();
      })
      .def("abort", [](Handle& h, const std::string& text, int kind, int about) {
        WithoutGil released;
        if (h.is_ours()) h.group->abort(text, AbortKind(kind), about);
      }, py::arg("text"), py::arg("kind") = int(AbortKind::kAborted), py::arg("about") = -1)
      .def("aborted", [](Handle& h) { return h.group->aborted(); })
      .def("check", [](Handle& h) { h.group->check(); })
      .def("name", [](Handle& h) { return h.group->name(); })
      .def("address_of", [](Handle& h, uint32_t rank, size_t offset) {
        return uintptr_t(h.group->arena_of(rank).data()) + offset;
      }, py::arg("rank"), py::arg("offset"))
      .def("all_left", [](Handle& h) { return h.group->all_left(); })
      .def("gone", [](Handle& h) { return h.group->gone(); })
      .def("gone_everywhere", [](Handle& h) { return h.group->gone_everywhere(); })
      .def("close_network", [](Handle& h) {
        WithoutGil released;
        if (h.is_ours()) h.group->close_network();
      })
      .def("set_traced", [](Handle& h, bool traced) { h.group->set_traced(traced); })
      .def("last_channels", [](Handle& h) {
        py::list channels;
        for (const ChannelTimes& c : h.group->last_channels())
          channels.append(py::make_tuple(c.start, c.stop, c.first_ns, c.last_ns));
        return channels;
      })
      .def("idle", [](Handle& h) { return !h.queue || h.queue->idle(); })
      .def("close", [](Handle& h) {
        WithoutGil released;
        if (h.is_ours()) h.queue.reset();
      })
      .def("calls", [](Handle& h) { return h.group->calls(); })
      .def("last_ns", [](Handle& h) { return h.group->last_ns(); })
      .def("last_paced_ns", [](Handle& h) { return h.group->last_paced_ns(); })
      .def("set_timeout", [](Handle& h, double s) { h.group->set_timeout(s); })
      .def("set_chunk_bytes", [](Handle& h, size_t n) { h.group->set_chunk_bytes(n); })
      .def("set_eager_bytes", [](Handle& h, uint64_t n) { h.group->set_eager_bytes(n); });
}
