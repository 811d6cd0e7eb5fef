"""`cuda.py` on a runtime made of Python: whose device is current, and what errors say."""
# ruff: noqa: N802, N815 - names as cupy has them

import ctypes
import sys
import threading
import types

import pytest

from blinkrun.errors import DeviceError
from blinkrun.executors import cuda
from blinkrun.types import DType


class RuntimeStatusError(RuntimeError):
    """As cupy's: a status, and the name of the error in the text."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Runtime(types.SimpleNamespace):
    """The calls that `cuda.py` makes, for two devices at the bus ids 0000:01 and 0000:02."""

    hostAllocMapped, hostAllocPortable, streamNonBlocking, eventDisableTiming = 2, 1, 1, 2
    cudaIpcMemLazyEnablePeerAccess = 1

    def __init__(self):
        super().__init__(
            current=0, calls=[], fails={}, count=2, memory={}, driver=13020, event_status=0
        )

    def __getattr__(self, name):
        def call(*args):
            self.calls.append((name, self.current, args))
            if name in self.fails:
                raise self.fails[name]
            return len(self.calls)

        return call

    def eventQuery(self, event):  # as cupy's, which raises nothing
        self.calls.append(("eventQuery", self.current, (event,)))
        return self.event_status

    def CUDARuntimeError(self, status):
        return RuntimeStatusError(status, f"status {status}")

    def getDeviceCount(self):
        if "getDeviceCount" in self.fails:
            raise self.fails["getDeviceCount"]
        return self.count

    def driverGetVersion(self):
        return self.driver

    def runtimeGetVersion(self):
        return 13020

    def getDevice(self):
        return self.current

    def setDevice(self, index):
        self.current = index

    def getDeviceProperties(self, index):
        return {
            "name": b"GPU", "uuid": bytes([index] * 16), "major": 9, "minor": 0,
            "multiProcessorCount": 132, "totalGlobalMem": 1 << 30,
        }  # fmt: skip

    def deviceGetPCIBusId(self, index):
        return f"0000:0{index + 1}:00.0"

    def deviceGetByPCIBusId(self, bus_id):
        if bus_id not in ("0000:01:00.0", "0000:02:00.0"):
            raise RuntimeStatusError(101, "cudaErrorInvalidDevice: invalid device ordinal")
        return int(bus_id[6]) - 1

    def hostAlloc(self, num_bytes, flags):
        memory = ctypes.create_string_buffer(b"x" * num_bytes, num_bytes)
        self.memory[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def pointerGetAttributes(self, pointer):
        kind = 1 if pointer in self.memory else 2 if pointer > 1000 else 0
        return types.SimpleNamespace(devicePointer=pointer + 1, type=kind, device=1)


class Driver(types.SimpleNamespace):
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4

    def __init__(self, runtime):
        super().__init__(runtime=runtime, launches=[], loaded=[], context=77)

    def ctxGetCurrent(self):
        return self.context

    def moduleLoadData(self, image):
        self.loaded.append((self.runtime.current, image))
        return len(self.loaded)

    def moduleGetFunction(self, module, name):
        return 100 + module

    def funcGetAttribute(self, attribute, function):
        return 40

    def occupancyMaxActiveBlocksPerMultiprocessor(self, function, threads, shared):
        return 2

    def launchKernel(self, function, *rest):
        if "launchKernel" in self.runtime.fails:
            raise self.runtime.fails["launchKernel"]
        params = (ctypes.c_void_p * 1).from_address(rest[8])
        seen = ctypes.string_at(params[0], 8)
        self.launches.append((self.runtime.current, function, rest[:8], seen))


@pytest.fixture
def runtime(monkeypatch):
    made = Runtime()
    api = types.ModuleType("cupy_backends.cuda.api")
    api.runtime, api.driver = made, Driver(made)
    for name, module in (
        ("cupy_backends", types.ModuleType("cupy_backends")),
        ("cupy_backends.cuda", types.ModuleType("cupy_backends.cuda")),
        ("cupy_backends.cuda.api", api),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("_devices", "_spare_streams", "_priorities"):
        monkeypatch.setattr(cuda, name, {})
    monkeypatch.setattr(cuda, "compile_for", lambda capability, dtype: dtype.label.encode())
    made.driver_module = api.driver
    return made


def test_every_call_is_on_the_device_and_leaves_what_was_current(runtime):
    device = cuda.open_device(1, 3)
    calls = [
        lambda: device.malloc(8), lambda: device.free(1), lambda: device.export(1),
        lambda: device.open(b""), lambda: device.close(1), lambda: device.memset(1, 0, 8, 2),
        lambda: device.copy(1, 2, 8, 3), lambda: device.new_stream(high_priority=True),
        lambda: device.synchronize(1),
        lambda: device.is_capturing(1), device.new_event, lambda: device.free_event(1),
        lambda: device.record(1, 2), lambda: device.is_through(1), lambda: device.wait(1, 2),
        lambda: device.register_host(5, 8), lambda: device.unregister_host(5),
        lambda: device.enable_peer("0000:01:00.0"), lambda: device.can_reach("0000:01:00.0"),
    ]  # fmt: skip
    for current in (0, 1):
        for call in calls:
            runtime.current = current
            runtime.calls.clear()
            call()
            assert runtime.current == current
            assert runtime.calls
            assert {on for _, on, _ in runtime.calls} == {1}


def test_a_thread_without_a_context_gets_that_of_the_device_and_keeps_it(runtime):
    """Device 0, which is said to be current there, would get a context of every rank."""
    device = cuda.open_device(1)
    runtime.driver_module.context = 0
    seen = []
    for _ in range(2):
        runtime.current = 0
        runtime.calls.clear()
        thread = threading.Thread(target=lambda: seen.append(device.most_blocks()))
        thread.start()
        thread.join(10)
        assert runtime.current == 1
        assert runtime.calls == []  # some calls are refused while a thread captures a graph
    assert seen == [132, 132]
    runtime.driver_module.context = 77
    runtime.current = 0
    device.most_blocks()
    assert runtime.current == 0


def test_an_error_says_call_rank_and_device_and_puts_the_device_back(runtime):
    device = cuda.open_device(1, 3)
    runtime.fails["malloc"] = RuntimeStatusError(2, "cudaErrorMemoryAllocation: out of memory")
    with pytest.raises(DeviceError) as caught:
        device.malloc(8)
    assert str(caught.value) == (
        "rank 3: device 1: cudaMalloc: cudaErrorMemoryAllocation: out of memory"
    )
    assert (caught.value.rank, caught.value.device, caught.value.call) == (3, 1, "cudaMalloc")
    assert runtime.current == 0


def test_a_launch_hands_over_the_call_at_its_address(runtime):
    device = cuda.open_device(1)
    call = ctypes.create_string_buffer(b"the call", 8)
    for _ in range(2):
        device.launch(ctypes.addressof(call), int(DType.INT64), 5, 77)
    driver = runtime.driver_module
    assert driver.loaded == [(1, b"int64")]  # once
    assert driver.launches == [(1, 101, (5, 1, 1, 512, 1, 1, 0, 77), b"the call")] * 2
    assert device.most_blocks() == 132


@pytest.mark.parametrize(("status", "advice"), [(906, "not the default one"), (400, "destroyed")])
def test_a_stream_that_does_not_do_is_told_from_one_while_others_capture(runtime, status, advice):
    device = cuda.open_device(1)
    for call in ("streamIsCapturing", "eventRecord", "launchKernel"):
        runtime.fails[call] = RuntimeStatusError(status, "cudaErrorOfAStream")
    call = ctypes.create_string_buffer(8)
    for act in (
        lambda: device.is_capturing(7),
        lambda: device.record(1, 0),
        lambda: device.launch(ctypes.addressof(call), int(DType.INT64), 1, 0),
    ):
        with pytest.raises(DeviceError, match=advice):
            act()


def test_ranks_of_a_process_share_loaded_kernels(runtime):
    for rank in range(3):
        cuda.open_device(0, rank).prepare(int(DType.BOOL))
    assert runtime.driver_module.loaded == [(0, b"bool")]


def test_devices_are_named_as_nvidia_smi_names_them(runtime):
    assert cuda.open_device(1).info.uuid == "GPU-01010101-0101-0101-0101-010101010101"
    runtime.getDeviceProperties = lambda index: {
        **Runtime.getDeviceProperties(runtime, index), "uuid": b"\x07"
    }  # fmt: skip
    assert cuda.open_device(0).info.uuid == "0000:01:00.0/07"  # cupy stops at a 0 byte


def test_events_that_are_not_through_and_peers_enabled_before_are_no_errors(runtime):
    device = cuda.open_device(0)
    assert device.is_through(1)
    runtime.event_status = 600
    assert not device.is_through(1)
    runtime.event_status = 400
    with pytest.raises(DeviceError, match="cudaEventQuery: status 400"):
        device.is_through(1)
    runtime.fails["deviceEnablePeerAccess"] = RuntimeStatusError(704, "cudaErrorPeerAccessAlready")
    device.enable_peer("0000:02:00.0")
    runtime.fails["deviceEnablePeerAccess"] = RuntimeStatusError(711, "cudaErrorTooManyPeers")
    with pytest.raises(DeviceError, match="TooManyPeers"):
        device.enable_peer("0000:02:00.0")


def test_reach_is_unknown_for_devices_that_this_process_does_not_see(runtime):
    device = cuda.open_device(0)
    runtime.deviceCanAccessPeer = lambda one, other: 0
    assert device.can_reach("0000:01:00.0") is True
    assert device.can_reach("0000:02:00.0") is False
    assert device.can_reach("0000:17:00.0") is None


def test_pinned_memory_is_zeroed_and_known_on_the_device(runtime):
    here, there = cuda.open_device(0).host_alloc(16)
    assert ctypes.string_at(here, 16) == bytes(16)
    assert there == here + 1


def test_whose_memory_it_is(runtime):
    here = runtime.hostAlloc(8, 0)
    assert cuda.device_at(here) is None
    assert cuda.device_at(2000) == 1
    assert cuda.device_at(7) is None
    runtime.fails["getDeviceCount"] = RuntimeStatusError(100, "cudaErrorNoDevice")
    assert cuda.device_at(2000) is None


@pytest.mark.parametrize(
    ("status", "driver", "wanted"),
    [
        (100, 13020, "CUDA_VISIBLE_DEVICES"),
        (35, 0, "the NVIDIA driver is missing"),
        (35, 12080, "the driver is for CUDA 12.8, cupy is built for CUDA 13: install"),
        (999, 13020, "nvidia-smi must work"),
    ],
)
def test_without_a_usable_driver_the_remedy_is_said(runtime, status, driver, wanted):
    runtime.driver = driver
    runtime.fails["getDeviceCount"] = RuntimeStatusError(status, "cudaErrorSomething: words\nmore")
    with pytest.raises(DeviceError, match=wanted) as caught:
        cuda.open_device(0, 2)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("rank 2: device 0: cudaGetDeviceCount: cudaErrorSomething")


def test_a_device_that_is_not_there(runtime):
    with pytest.raises(DeviceError, match="this process sees 2 devices; look at"):
        cuda.open_device(2)


def test_without_cupy_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("cupy")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cupy_backends", None)
    with pytest.raises(DeviceError, match=r"install blinkrun\[cuda13\]"):
        cuda.open_device(0)


def test_cupy_returns_the_status_of_an_event_as_assumed_here():
    """An error where there is no driver; were it raised, `is_through` would have to know."""
    runtime = pytest.importorskip("cupy_backends.cuda.api.runtime")
    assert isinstance(runtime.eventQuery(0), int)
    assert issubclass(runtime.CUDARuntimeError, RuntimeError)


def test_streams_are_kept_for_others_and_never_destroyed(runtime):
    """Allocators of frameworks may record events in them when they are long let go of."""
    device, other = cuda.open_device(1), cuda.open_device(0)
    high, low = device.new_stream(high_priority=True), device.new_stream()
    device.free_stream(high)
    assert other.new_stream(high_priority=True) not in (high, low)
    assert device.new_stream() not in (high, low)
    assert device.new_stream(high_priority=True) == high
    assert device.new_stream(high_priority=True) != high
    assert "streamDestroy" not in {name for name, _, _ in runtime.calls}
