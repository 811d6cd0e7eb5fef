// Bindings of what carries messages of devices between hosts.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <string_view>

#include "bindings.hpp"
#include "proxy.hpp"

namespace py = pybind11;

namespace blinkrun {

namespace {

// In a forked child there is no thread to wait for.
struct ProxyHandle {
  std::unique_ptr<Proxy> proxy;
  const uint32_t made_after = forks.load();
  bool is_ours() const { return forks.load(std::memory_order_relaxed) == made_after; }
  ~ProxyHandle() {
    if (!is_ours()) (void)proxy.release();
  }
};

std::unique_ptr<ProxyHandle> make_proxy(Handle& group, const std::map<std::string, int64_t>& wire,
                                        uintptr_t host, uintptr_t rings, size_t rings_bytes,
                                        uint64_t scratch_bytes) {
  if (!group.group->network()) throw std::invalid_argument("a proxy is for a group over several hosts");
  auto handle = std::make_unique<ProxyHandle>();
  handle->proxy = std::make_unique<Proxy>(group.group, mpi_config(wire), reinterpret_cast<DeviceHost*>(host),
                                          reinterpret_cast<char*>(rings), rings_bytes, scratch_bytes);
  return handle;
}

}  // namespace

void bind_proxy(py::module_& m) {
  py::class_<ProxyHandle>(m, "Proxy")
      .def(py::init(&make_proxy), py::kw_only(), py::arg("group"), py::arg("wire"), py::arg("host"),
           py::arg("rings"), py::arg("rings_bytes"), py::arg("scratch_bytes"))
      .def("load", [](ProxyHandle& h, const py::bytes& flat) { return h.proxy->load(std::string(flat)); })
      .def("submit", [](ProxyHandle& h, int64_t program, const py::bytes& call) {
        const std::string_view bytes = call;
        if (bytes.size() != sizeof(DeviceDesc)) throw std::invalid_argument("no DeviceDesc");
        DeviceDesc desc;
        std::memcpy(&desc, bytes.data(), sizeof desc);
        return h.proxy->submit(program < 0 ? Proxy::kNoProgram : uint32_t(program), desc);
      })
      .def("words", [](ProxyHandle& h, uint64_t call) { return h.proxy->words(call); })
      .def("missing", [](ProxyHandle& h, uint64_t call) { return h.proxy->missing(call); })
      .def("close", [](ProxyHandle& h) {
        WithoutGil released;
        if (h.is_ours()) h.proxy->close();
      });
}

}  // namespace blinkrun
