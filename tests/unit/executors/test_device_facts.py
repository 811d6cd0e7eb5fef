"""What a host tells of its GPUs to `blinkrun doctor`: drivers, packages and trials are fakes."""

import ctypes
import json
import os
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from blinkrun.cli.doctor_gpus import findings
from blinkrun.errors import DeviceError
from blinkrun.executors import cuda, device_facts, kernel_source
from blinkrun.executors.device_facts import driver, kernel, memory, open_handle, packages


class FakeDriver:
    """A driver's library: its functions fill in what their arguments point to."""

    def __init__(self, cuda=13000, devices=(("NVIDIA H200", b"0000:07:00.0", 9, 0, 0),), code=0):
        self.cuda, self.devices, self.code = cuda, devices, code

    def cuDriverGetVersion(self, version):  # noqa: N802
        version._obj.value = self.cuda

    def cuInit(self, flags):  # noqa: N802
        assert flags == 0
        return self.code

    def cuGetErrorName(self, code, name):  # noqa: N802
        name._obj.value = {100: b"CUDA_ERROR_NO_DEVICE"}.get(code)

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = len(self.devices)

    def cuDeviceGet(self, device, index):  # noqa: N802
        device._obj.value = index

    def cuDeviceGetName(self, name, size, device):  # noqa: N802
        name.value = self.devices[device.value][0].encode()[: size - 1]

    def cuDeviceGetPCIBusId(self, bus, size, device):  # noqa: N802
        bus.value = self.devices[device.value][1]

    def cuDeviceGetAttribute(self, value, which, device):  # noqa: N802
        value._obj.value = self.devices[device.value][{75: 2, 76: 3, 20: 4}[which]]


def test_the_driver_says_which_cuda_it_takes_and_what_it_shows():
    found = driver(lambda name: FakeDriver())
    assert found["cuda"] == 13000
    assert found["devices"] == [
        {"name": "NVIDIA H200", "bus": "0000:07:00.0", "capability": [9, 0], "mode": 0}
    ]
    assert "error" not in found


def test_a_driver_that_does_not_start_is_an_error_by_name():
    found = driver(lambda name: FakeDriver(code=100))
    assert found["error"] == "CUDA_ERROR_NO_DEVICE"
    assert driver(lambda name: FakeDriver(code=7))["error"] == "error 7"


def test_a_host_without_a_driver_says_so():
    def load(name):
        raise OSError(f"{name}: cannot open shared object file")

    assert driver(load) == {
        "error": "OSError",
        "text": "libcuda.so.1: cannot open shared object file",
    }


def test_all_cupys_are_found(monkeypatch):
    def version(name):
        if name in ("cupy-cuda12x", "cupy-cuda13x"):
            return "14.2.0"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert packages() == {"cupy-cuda12x": "14.2.0", "cupy-cuda13x": "14.2.0"}


class FakeApi:
    def __init__(self, refused=""):
        self.refused, self.held = refused, set()

    def malloc(self, num_bytes):
        self.held.add(num_bytes)
        return num_bytes

    def free(self, pointer):
        self.held.remove(pointer)

    def export(self, pointer):
        return bytes(64)

    def open(self, handle):
        if self.refused:
            raise DeviceError("cudaIpcOpenMemHandle", 0, self.refused)
        self.held.add(len(handle))
        return len(handle)

    def close(self, pointer):
        self.held.remove(pointer)


ONE = {"devices": [{"capability": [9, 0]}]}


@pytest.mark.parametrize(
    ("code", "printed", "found"),
    [
        (0, b"", {}),
        (1, b"a\nrefused: no\n", {"error": "Failed", "text": "refused: no"}),
        (-11, b"", {"error": "Failed", "text": "exit code -11"}),
    ],
)
def test_memory_is_opened_by_another_process_and_given_back(monkeypatch, code, printed, found):
    api = FakeApi()
    ran = []

    def run(argv, **how):
        ran.append(argv)
        return subprocess.CompletedProcess(argv, code, b"", printed)

    monkeypatch.setattr(cuda, "open_device", lambda index: api)
    monkeypatch.setattr(device_facts.subprocess, "run", run)
    assert memory(ONE) == found
    assert bytes(64).hex() in ran[0][-1]
    assert api.held == set()


def test_a_process_that_does_not_answer_is_an_error(monkeypatch):
    def run(argv, timeout, **how):
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.setattr(cuda, "open_device", lambda index: FakeApi())
    monkeypatch.setattr(device_facts.subprocess, "run", run)
    assert memory(ONE)["text"] == "no answer in 20 s"


def test_memory_needs_a_device(monkeypatch):
    assert memory({"devices": []}) is None

    def no_device(index):
        raise DeviceError("cudaSetDevice", index, "out of memory")

    monkeypatch.setattr(cuda, "open_device", no_device)
    assert memory(ONE)["text"].endswith("cudaSetDevice: out of memory")


def test_the_other_process_says_why_it_cannot(monkeypatch):
    api = FakeApi()
    monkeypatch.setattr(cuda, "open_device", lambda index: api)
    open_handle("00ff")
    assert api.held == set()
    monkeypatch.setattr(cuda, "open_device", lambda index: FakeApi("invalid resource handle"))
    with pytest.raises(SystemExit, match="cudaIpcOpenMemHandle: invalid resource handle"):
        open_handle("00ff")


def test_a_compiler_that_is_missing_is_not_a_broken_kernel(monkeypatch):
    def missing():
        raise DeviceError("libnvrtc", -1, "libnvrtc.so.13: cannot open", "install it")

    monkeypatch.setattr(cuda, "nvrtc", missing)
    assert kernel({"devices": []}) == {"error": "nvrtc", "text": "libnvrtc.so.13: cannot open"}


def test_a_kernel_is_compiled_for_the_first_device_or_for_any(monkeypatch):
    asked = []

    def cubin(label, capability, compiler):
        asked.append((label, capability, compiler.version))
        if capability == (7, 0):
            raise DeviceError("nvrtcCompileProgram", -1, "kernels.cu(3): error: x\nand more")
        return b""

    monkeypatch.setattr(cuda, "nvrtc", lambda: SimpleNamespace(version=(13, 5)))
    monkeypatch.setattr(kernel_source, "cubin", cubin)
    assert kernel(ONE)["nvrtc"] == "13.5"
    assert kernel({"error": "no driver"})["seconds"] >= 0
    assert asked == [("float32", (9, 0), (13, 5)), ("float32", (8, 0), (13, 5))]
    broken = kernel({"devices": [{"capability": [7, 0]}]})
    assert broken["error"] == "DeviceError"
    assert broken["text"].endswith("kernels.cu(3): error: x")


def test_all_facts_are_one_line_of_json(monkeypatch, capsys):
    monkeypatch.setattr(device_facts, "driver", lambda: {"error": "OSError", "text": "none"})
    monkeypatch.setattr(device_facts, "kernel", lambda found: {"seconds": 1.0})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    device_facts.main()
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line.removeprefix(device_facts.MARK))
    assert found["driver"]["error"] == "OSError"
    assert (found["memory"], found["visible"]) == (None, "1")
    assert next(findings("h", found)).startswith("h has no NVIDIA driver (none)")


def test_a_child_of_this_one_has_the_same_namespaces():
    code = "from blinkrun.executors.device_facts import own_namespaces; print(own_namespaces())"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.strip() == repr(device_facts.own_namespaces())
    assert {os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "ipc")}
    assert ctypes.sizeof(ctypes.c_int) == 4  # what the driver's integers are
