"""What this host has for calls on GPUs, for ``blinkrun doctor``; runs in a process of its own.

Driver and devices are asked through the driver's own library, so that a missing or wrong cupy hides
nothing. Kernel and memory between processes are tried as ranks use them.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

from blinkrun.errors import DeviceError

MARK = "devices "
TRIAL_S = 20.0  # longest wait for the process that opens another one's memory
_CUPYS = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy-cuda14x")
_TEXT_BYTES = 256
_ANY = [8, 0]  # compute capability of a trial without a GPU
_MAJOR, _MINOR, _COMPUTE_MODE = 75, 76, 20  # CUdevice_attribute
# The first namespaces of a Linux system have these numbers (include/linux/proc_ns.h).
_FIRST_NAMESPACES = {"pid": 0xEFFFFFFC, "ipc": 0xEFFFFFFF}

Load = Callable[[str], Any]


def main() -> None:
    """Print the facts as one line of JSON."""
    sys.stdout.write(f"{MARK}{json.dumps(facts())}\n")
    sys.stdout.flush()


def facts() -> dict[str, Any]:
    """Return all of it; parts that cannot be found hold an ``error``."""
    found = driver()
    return {
        "packages": packages(),
        "driver": found,
        "kernel": kernel(found),
        "memory": memory(found),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "namespaces": own_namespaces(),
    }


def packages() -> dict[str, str]:
    """Return the cupys that are installed, with their versions."""
    found = {}
    for name in _CUPYS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def driver(load: Load = ctypes.CDLL) -> dict[str, Any]:
    """Return the CUDA that the driver takes and the devices that it shows to this process.

    Parameters
    ----------
    load : callable
        Loads a library.
    """
    try:
        library = load("libcuda.so.1")
    except OSError as err:
        return {"error": "OSError", "text": str(err)}
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    found: dict[str, Any] = {"cuda": version.value, "devices": []}
    code = library.cuInit(0)
    if code:
        return found | {"error": _error_name(library, code), "text": f"cuInit gave {code}"}
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    found["devices"] = [_device(library, index) for index in range(count.value)]
    return found


def kernel(found: dict[str, Any]) -> dict[str, Any]:
    """Compile one kernel for the first device, or for any; return how long it took."""
    devices = found.get("devices") or [{"capability": _ANY}]
    from blinkrun.executors import cuda  # noqa: PLC0415 - none of other commands

    try:
        compiler = cuda.nvrtc()
    except DeviceError as err:
        return {"error": "nvrtc", "text": err.reason}
    from blinkrun.executors import kernel_source  # noqa: PLC0415

    started_s = time.monotonic()
    try:
        kernel_source.cubin("float32", tuple(devices[0]["capability"]), compiler)
    except (DeviceError, OSError) as err:
        return {"error": type(err).__name__, "text": _line(err)}
    version = "{}.{}".format(*compiler.version)
    return {"seconds": round(time.monotonic() - started_s, 1), "nvrtc": version}


def memory(found: dict[str, Any]) -> dict[str, Any] | None:
    """Let another process open memory of the first device; None without a device."""
    if not found.get("devices"):
        return None
    from blinkrun.executors import cuda  # noqa: PLC0415 - none of other commands

    try:
        api = cuda.open_device(0)
        pointer = api.malloc(1 << 12)
        try:
            return _opened_elsewhere(api.export(pointer))
        finally:
            api.free(pointer)
    except (DeviceError, OSError) as err:
        return {"error": type(err).__name__, "text": _line(err)}


def open_handle(handle: str) -> None:
    """Open memory of the process that started this one, and let go of it."""
    from blinkrun.executors import cuda  # noqa: PLC0415

    try:
        api = cuda.open_device(0)
        api.close(api.open(bytes.fromhex(handle)))
    except DeviceError as err:
        sys.exit(_line(err))


def own_namespaces() -> list[str]:
    """Return which of pid and ipc this process does not share with the host: in a container."""
    own = []
    for name, first in _FIRST_NAMESPACES.items():
        try:
            if os.stat(f"/proc/self/ns/{name}").st_ino != first:
                own.append(name)
        except OSError:
            continue
    return own


def _opened_elsewhere(handle: bytes) -> dict[str, Any]:
    code = f"from blinkrun.executors.device_facts import open_handle; open_handle('{handle.hex()}')"
    try:
        ran = subprocess.run(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TRIAL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": "Timeout", "text": f"no answer in {TRIAL_S:g} s"}
    if ran.returncode == 0:
        return {}
    lines = ran.stderr.decode(errors="replace").strip().splitlines()
    return {"error": "Failed", "text": lines[-1] if lines else f"exit code {ran.returncode}"}


def _device(library: Any, index: int) -> dict[str, Any]:
    device = ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(_TEXT_BYTES)
    library.cuDeviceGetName(name, _TEXT_BYTES, device)
    bus = ctypes.create_string_buffer(_TEXT_BYTES)
    library.cuDeviceGetPCIBusId(bus, _TEXT_BYTES, device)

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), which, device)
        return value.value

    return {
        "name": name.value.decode(errors="replace"),
        "bus": bus.value.decode(errors="replace").lower(),
        "capability": [attribute(_MAJOR), attribute(_MINOR)],
        "mode": attribute(_COMPUTE_MODE),
    }


def _error_name(library: Any, code: int) -> str:
    name = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(name))
    return (name.value or b"").decode() or f"error {code}"


def _line(err: BaseException) -> str:
    return next(iter(f"{err}".strip().splitlines()), type(err).__name__)
