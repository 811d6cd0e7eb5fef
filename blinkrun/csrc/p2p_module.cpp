// Python bindings of the messages between two ranks.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <vector>

#include "bindings.hpp"

namespace py = pybind11;

namespace blinkrun {
namespace {

using Arguments = std::tuple<bool, uint32_t, int64_t, uintptr_t, size_t>;

template <class Body> auto watched(Handle& handle, bool may_spin, Body body) {
  handle.refuse_after_fork();
  Gil gil;
  try {
    return body(handle.group->pipes(), gil.caller(may_spin));
  } catch (const py::error_already_set&) {  // nobody may go on in the middle of a message
    handle.group->abort("rank " + std::to_string(handle.group->name()) +
                        " was interrupted in a send or recv");
    throw;
  }
}

void transfer(Handle& handle, const std::vector<Arguments>& list, bool may_spin) {
  std::vector<Transfer> transfers;
  transfers.reserve(list.size());
  for (const auto& [sends, peer, tag, data, bytes] : list)
    transfers.push_back({sends, peer, tag, reinterpret_cast<char*>(data), bytes});
  watched(handle, may_spin, [&](Pipes& pipes, const Caller& caller) {
    pipes.run(transfers, caller);
    return 0;
  });
}

bool arrived(Handle& handle, uint32_t src, int64_t tag) {
  return watched(handle, true, [&](Pipes& pipes, const Caller& caller) {
    return pipes.arrived(src, tag, caller);
  });
}

}  // namespace

void bind_p2p(py::class_<Handle>& group) {
  group
      .def("transfer", &transfer, py::arg("transfers"), py::arg("may_spin") = true,
           "Carry out (sends, peer, tag, address, bytes) together.")
      .def("has_left", [](Handle& h, uint32_t rank) {
        if (rank >= h.group->size()) throw py::index_error("there is no such rank");
        return h.group->has_left(rank);
      })
      .def("arrived", &arrived, py::arg("src"), py::arg("tag"));
}

}  // namespace blinkrun
