// Python bindings of the journal, and of the copies into and out of a buffer of many tensors.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bindings.hpp"

namespace py = pybind11;

namespace blinkrun {
namespace {

constexpr size_t kSmallCopy = 64 << 10;  // bytes below which the GIL is kept

uint64_t nanoseconds(double seconds) {
  return uint64_t(std::clamp(seconds, 0.0, 1e9) * 1e9);
}

void post(Handle& handle, const py::bytes& message, bool urgent) {
  handle.refuse_after_fork();
  const char* data = PyBytes_AS_STRING(message.ptr());
  const size_t bytes = size_t(PyBytes_GET_SIZE(message.ptr()));
  Gil gil;
  handle.group->journal().post(data, bytes, urgent, gil.caller(true));
}

py::list read(Handle& handle) {
  handle.refuse_after_fork();
  py::list messages;
  for (const Message& message : handle.group->journal().read())
    messages.append(py::make_tuple(message.rank, py::bytes(message.text)));
  return messages;
}

bool wait(Handle& handle, double timeout_s, bool may_spin) {
  handle.refuse_after_fork();
  Gil gil;
  return handle.group->journal().wait(nanoseconds(timeout_s), gil.caller(may_spin));
}

bool sleep(Handle& handle, double timeout_s) {
  handle.refuse_after_fork();
  Gil gil;
  return handle.group->journal().sleep(nanoseconds(timeout_s), gil.caller(false));
}

struct Part {
  char* memory;
  size_t bytes, offset;
};

std::vector<Part> read_parts(const py::list& list, size_t* total) {
  std::vector<Part> parts;
  parts.reserve(list.size());
  for (py::handle item : list) {
    if (!PyTuple_Check(item.ptr()) || PyTuple_GET_SIZE(item.ptr()) != 3)
      throw std::invalid_argument("a part is (address, bytes, offset)");
    size_t numbers[3];
    for (int i = 0; i < 3; ++i) {
      numbers[i] = PyLong_AsSize_t(PyTuple_GET_ITEM(item.ptr(), i));
      if (PyErr_Occurred()) throw py::error_already_set();
    }
    parts.push_back({reinterpret_cast<char*>(numbers[0]), numbers[1], numbers[2]});
    *total += numbers[1];
  }
  return parts;
}

template <class Copy> void copy_parts(const py::list& list, Copy copy) {
  size_t total = 0;
  const std::vector<Part> parts = read_parts(list, &total);
  Gil gil;
  if (total > kSmallCopy) gil.release();
  for (const Part& part : parts)
    if (part.bytes) copy(part);
}

void pack(uintptr_t dst, const py::list& parts) {
  char* to = reinterpret_cast<char*>(dst);
  copy_parts(parts, [&](const Part& p) { std::memcpy(to + p.offset, p.memory, p.bytes); });
}

void unpack(uintptr_t src, const py::list& parts) {
  const char* from = reinterpret_cast<const char*>(src);
  copy_parts(parts, [&](const Part& p) { std::memcpy(p.memory, from + p.offset, p.bytes); });
}

}  // namespace

void bind_journal(py::class_<Handle>& group) {
  group.def("journal_post", &post, py::arg("message"), py::arg("urgent"))
      .def("journal_read", &read)
      .def("journal_wait", &wait, py::arg("timeout_s"), py::arg("may_spin"))
      .def("journal_sleep", &sleep, py::arg("timeout_s"))
      .def("journal_kick", [](Handle& h) { h.group->journal().kick(); })
      .def("start_relay", [](Handle& h) { h.group->journal().start_relay(); })
      .def("relieve_also", [](Handle& h, Handle& other) {
        std::weak_ptr<Group> group = other.group;  // of more ranks; it may end first
        h.group->journal().relieve_also([group] {
          if (const auto there = group.lock()) there->journal().relieve();
        });
      });
}

void bind_packing(py::module_& m) {
  m.attr("JOURNAL_BYTES") = kJournalBytes;
  m.def("pack", &pack, py::arg("dst"), py::arg("parts"),
        "Copy parts (address, bytes, offset) to their offsets from dst.");
  m.def("unpack", &unpack, py::arg("src"), py::arg("parts"),
        "Copy parts (address, bytes, offset) from their offsets from src.");
}

}  // namespace blinkrun
