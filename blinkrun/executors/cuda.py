"""Devices of CUDA by way of cupy, which this file alone imports: `open_device`.

Only the runtime's calls are used, none of cupy's arrays or pools. Every call makes the device
current in its thread and puts back what was current before, so that other libraries find theirs.
"""

from __future__ import annotations

import ctypes
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn

from blinkrun.errors import DeviceError
from blinkrun.executors.cuda_kernels import THREADS, Kernels
from blinkrun.executors.device_api import DeviceInfo
from blinkrun.types import DType

_KINDS = 4  # cudaMemcpyDefault: by the addresses
_NO_DEVICE, _OLD_DRIVER = 100, 35
_SUCCESS, _NOT_READY = 0, 600
_ALREADY_ENABLED, _CAPTURES_ELSEWHERE = 704, 906
_UUID_BYTES = 16
_DEVICE_MEMORY, _MANAGED_MEMORY = 2, 3

_devices: dict[int, tuple[DeviceInfo, Kernels]] = {}
_lock = threading.Lock()
_spare_streams: dict[tuple[int, int], list[int]] = {}  # by device and priority
_priorities: dict[int, int] = {}  # of streams


def open_device(index: int, rank: int = -1) -> CudaDevice:
    """Return device `index` of this process, for `rank`.

    Raises
    ------
    DeviceError
        If cupy or the driver is missing or does not fit, or there is no such device; says what to
        do.
    """
    runtime, driver = _load(index, rank)
    with _lock:
        if index not in _devices:
            info = _info(runtime, index, rank)
            _devices[index] = info, _kernels(driver, info)
    return CudaDevice(*_devices[index], runtime, driver, rank)


def device_at(pointer: int) -> int | None:
    """Return the device whose memory lies at `pointer`; None for other memory, or without CUDA."""
    try:
        runtime, driver = _load(-1, -1)
        for info, _ in _devices.values():
            _bind(runtime, driver, info.index)
            break
        attributes = runtime.pointerGetAttributes(pointer)
    except (DeviceError, RuntimeError):
        return None
    if attributes.type not in (_DEVICE_MEMORY, _MANAGED_MEMORY):
        return None
    return int(attributes.device)


def _load(index: int, rank: int) -> tuple[ModuleType, ModuleType]:
    """Return cupy's modules of the runtime and the driver, once they work."""
    try:
        from cupy_backends.cuda.api import driver, runtime  # noqa: PLC0415 - most need no GPU
    except ImportError as err:
        missing = isinstance(err, ModuleNotFoundError) and (err.name or "").startswith("cupy")
        reason = "cupy is not installed" if missing else _first_line(err)
        raise DeviceError(
            "import cupy",
            index,
            reason,
            "install blinkrun[cuda13], or blinkrun[cuda12] for a driver older than 580",
            rank=rank,
        ) from None
    try:
        count = runtime.getDeviceCount()
    except RuntimeError as err:
        raise DeviceError(
            "cudaGetDeviceCount", index, _first_line(err), _without_devices(runtime, err), rank=rank
        ) from None
    if index >= count:
        raise DeviceError(
            "cudaSetDevice",
            index,
            f"this process sees {count} device{'s' * (count != 1)}",
            "look at CUDA_VISIBLE_DEVICES, and at how many ranks run on this host",
            rank=rank,
        )
    return runtime, driver


def _bind(runtime: ModuleType, driver: ModuleType, index: int) -> None:
    """Let this thread have a context if it has none: calls of the driver need one.

    A thread without one is said to have device 0 current. To put that back, or to call anything,
    would make a context there, of each rank, which takes hundreds of megabytes; it keeps device
    `index` instead.
    """
    try:
        has_context = driver.ctxGetCurrent() != 0
    except RuntimeError:  # the driver was never called
        has_context = False
    if not has_context:
        runtime.setDevice(index)  # makes it too, since CUDA 12


def _without_devices(runtime: ModuleType, err: Exception) -> str:
    """Return what to do where the runtime finds no device that it can use."""
    status = getattr(err, "status", 0)
    if status == _NO_DEVICE:
        return "no GPU is visible: look at CUDA_VISIBLE_DEVICES, and give the container its GPUs"
    if status != _OLD_DRIVER:
        return "nvidia-smi must work where the ranks run"
    version = _driver_version(runtime)
    if not version:
        return "the NVIDIA driver is missing here; in a container, start it with its GPUs (--gpus)"
    built = runtime.runtimeGetVersion() // 1000
    return (
        f"the driver is for CUDA {version // 1000}.{version % 1000 // 10}, cupy is built for CUDA"
        f" {built}: install blinkrun[cuda{version // 1000}], or a newer driver"
    )


def _driver_version(runtime: ModuleType) -> int:
    try:
        return int(runtime.driverGetVersion())
    except RuntimeError:
        return 0


def _info(runtime: ModuleType, index: int, rank: int) -> DeviceInfo:
    try:
        found: dict[str, Any] = runtime.getDeviceProperties(index)
        bus_id = str(runtime.deviceGetPCIBusId(index)).lower()
        return DeviceInfo(
            index=index,
            name=_text(found["name"]),
            uuid=_uuid(bytes(found["uuid"]), bus_id),
            pci_bus_id=bus_id,
            capability=(int(found["major"]), int(found["minor"])),
            multiprocessors=int(found["multiProcessorCount"]),
            total_bytes=int(found["totalGlobalMem"]),
            driver=int(runtime.driverGetVersion()),
            runtime=int(runtime.runtimeGetVersion()),
        )
    except RuntimeError as err:
        raise DeviceError("cudaGetDeviceProperties", index, _first_line(err), rank=rank) from None


class Nvrtc:
    """The compiler of kernels; it needs no GPU. Made by `nvrtc`.

    Attributes
    ----------
    version : tuple of int
        Major and minor.
    """

    def __init__(self, library: ModuleType, version: tuple[int, int]) -> None:
        self._library = library
        self.version = version

    def compile(
        self, source: str, *, name: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> bytes:
        """Return the cubin of `source`, which may include `headers` by their names.

        Raises
        ------
        DeviceError
            If it does not compile; with what the compiler says.
        """
        library = self._library
        texts = [text.encode() for text in headers.values()]
        names = [each.encode() for each in headers]
        program = library.createProgram(source, name, texts, names)
        try:
            library.compileProgram(program, tuple(options))
            return bytes(library.getCUBIN(program))
        except RuntimeError as err:
            said = f"{library.getProgramLog(program)}".strip() or _first_line(err)
            raise DeviceError("nvrtcCompileProgram", -1, said) from None
        finally:
            library.destroyProgram(program)


def nvrtc() -> Nvrtc:
    """Return the compiler that cupy finds.

    Raises
    ------
    DeviceError
        If there is none; says what to install.
    """
    try:
        from cupy_backends.cuda.libs import nvrtc as library  # noqa: PLC0415 - most need no GPU

        major, minor = library.getVersion()
    except (ImportError, RuntimeError) as err:
        raise DeviceError(
            "libnvrtc",
            -1,
            _first_line(err),
            "install nvidia-cuda-nvrtc, which blinkrun[cuda13] and blinkrun[cuda12] bring",
        ) from None
    return Nvrtc(library, (int(major), int(minor)))


def compile_for(capability: tuple[int, int], dtype: DType) -> bytes:
    """Return the kernel for `dtype` on devices of that compute capability; needs no GPU.

    Raises
    ------
    DeviceError
        If there is no compiler, or it fails.
    """
    from blinkrun.executors import kernel_source  # noqa: PLC0415 - few need it

    return kernel_source.cubin(dtype.label, capability, nvrtc())


def _kernels(driver: ModuleType, info: DeviceInfo) -> Kernels:
    return Kernels(driver, info.multiprocessors, lambda dtype: compile_for(info.capability, dtype))


class CudaDevice:
    """One device of this process, as `DeviceApi` says; made by `open_device`."""

    def __init__(
        self,
        info: DeviceInfo,
        kernels: Kernels,
        runtime: ModuleType,
        driver: ModuleType,
        rank: int,
    ) -> None:
        self.info = info
        self._kernels = kernels
        self._index = info.index
        self._rank = rank
        self._runtime = runtime
        self._driver = driver
        self._local = threading.local()  # whether a thread has a context
        self._cells: dict[int, ctypes.c_void_p] = {}  # a launch takes the address of one

    def _do(self, name: str, function: Callable[..., Any], *args: Any, advice: str = "") -> Any:
        """Call `function` with the device current; raise its error as ours."""
        runtime, index = self._runtime, self._index
        try:
            if not getattr(self._local, "is_bound", False):
                _bind(runtime, self._driver, index)
                self._local.is_bound = True
            before = runtime.getDevice()
            if before == index:
                return function(*args)
            runtime.setDevice(index)
            try:
                return function(*args)
            finally:
                runtime.setDevice(before)
        except RuntimeError as err:
            self._fail(name, err, advice)

    def _fail(self, name: str, err: Exception, advice: str) -> NoReturn:
        if getattr(err, "status", 0) == _CAPTURES_ELSEWHERE:
            advice = _CAPTURED
        raise DeviceError(name, self._index, _first_line(err), advice, rank=self._rank) from err

    def free_bytes(self) -> int:
        """Return how much memory of the device is free."""
        return int(self._do("cudaMemGetInfo", self._runtime.memGetInfo)[0])

    def malloc(self, num_bytes: int) -> int:
        """Return the address of new device memory."""
        return int(self._do("cudaMalloc", self._runtime.malloc, num_bytes))

    def free(self, pointer: int) -> None:
        """Give back what `malloc` returned."""
        self._do("cudaFree", self._runtime.free, pointer)

    def host_alloc(self, num_bytes: int) -> tuple[int, int]:
        """Return new pinned host memory, zeroed: its address here and on the device."""
        runtime = self._runtime
        flags = runtime.hostAllocMapped | runtime.hostAllocPortable
        here = int(self._do("cudaHostAlloc", runtime.hostAlloc, num_bytes, flags))
        ctypes.memset(here, 0, num_bytes)
        return here, self._on_device(here)

    def host_free(self, pointer: int) -> None:
        """Give back what `host_alloc` returned (the address here)."""
        self._do("cudaFreeHost", self._runtime.freeHost, pointer)

    def register_host(self, pointer: int, num_bytes: int) -> int:
        """Pin host memory of this process; return its address on the device."""
        runtime = self._runtime
        flags = runtime.hostAllocMapped | runtime.hostAllocPortable  # cudaHostRegister's are equal
        self._do(
            "cudaHostRegister",
            runtime.hostRegister,
            pointer,
            num_bytes,
            flags,
            advice="the host must let this process lock memory (ulimit -l unlimited)",
        )
        return self._on_device(pointer)

    def unregister_host(self, pointer: int) -> None:
        """Let go of memory that was pinned."""
        self._do("cudaHostUnregister", self._runtime.hostUnregister, pointer)

    def _on_device(self, pointer: int) -> int:
        attributes = self._do(
            "cudaPointerGetAttributes", self._runtime.pointerGetAttributes, pointer
        )
        return int(attributes.devicePointer)

    def export(self, pointer: int) -> bytes:
        """Return the handle by which another process opens memory of `malloc`."""
        return bytes(self._do("cudaIpcGetMemHandle", self._runtime.ipcGetMemHandle, pointer))

    def open(self, handle: bytes) -> int:
        """Return the address of another process's memory; raises where it is out of reach."""
        runtime = self._runtime
        flags = runtime.cudaIpcMemLazyEnablePeerAccess
        return int(self._do("cudaIpcOpenMemHandle", runtime.ipcOpenMemHandle, handle, flags))

    def close(self, pointer: int) -> None:
        """Let go of what `open` returned."""
        self._do("cudaIpcCloseMemHandle", self._runtime.ipcCloseMemHandle, pointer)

    def can_reach(self, pci_bus_id: str) -> bool | None:
        """Whether the device at `pci_bus_id` is this one, or one that it can address directly.

        None for a device that this process does not see.
        """
        other = self._ordinal(pci_bus_id)
        if other is None or other == self._index:
            return None if other is None else True
        runtime = self._runtime
        answer = self._do(
            "cudaDeviceCanAccessPeer", runtime.deviceCanAccessPeer, self._index, other
        )
        return bool(answer)

    def _ordinal(self, pci_bus_id: str) -> int | None:
        if pci_bus_id == self.info.pci_bus_id:
            return self._index
        try:
            return int(self._runtime.deviceGetByPCIBusId(pci_bus_id))
        except RuntimeError:  # another process sees it
            return None

    def enable_peer(self, pci_bus_id: str) -> None:
        """Let kernels on this device address memory of that one; harmless when done before."""
        other = self._ordinal(pci_bus_id)
        try:
            self._do(
                "cudaDeviceEnablePeerAccess",
                self._runtime.deviceEnablePeerAccess,
                -1 if other is None else other,
            )
        except DeviceError as err:
            if getattr(err.__cause__, "status", 0) != _ALREADY_ENABLED:
                raise

    def memset(self, pointer: int, value: int, num_bytes: int, stream: int) -> None:
        """Set bytes, in the order of `stream`."""
        self._do("cudaMemsetAsync", self._runtime.memsetAsync, pointer, value, num_bytes, stream)

    def copy(self, dst: int, src: int, num_bytes: int, stream: int) -> None:
        """Copy bytes between any two memories, in the order of `stream`."""
        function = self._runtime.memcpyAsync
        self._do("cudaMemcpyAsync", function, dst, src, num_bytes, _KINDS, stream)

    def new_stream(self, *, high_priority: bool = False) -> int:
        """Return a stream that does not wait for the default stream."""
        runtime = self._runtime
        # Priorities out of range are clamped; lower numbers come first.
        priority = -5 if high_priority else 0
        spare = _spare_streams.setdefault((self._index, priority), [])
        with suppress(IndexError):
            return spare.pop()
        stream = int(
            self._do(
                "cudaStreamCreateWithPriority",
                runtime.streamCreateWithPriority,
                runtime.streamNonBlocking,
                priority,
            )
        )
        _priorities[stream] = priority
        return stream

    def free_stream(self, stream: int) -> None:
        """Keep a stream of `new_stream` for the next one who wants one.

        It is never destroyed: when a tensor goes that was used in it, torch's allocator records an
        event there, which may be long after.
        """
        _spare_streams[self._index, _priorities[stream]].append(stream)

    def synchronize(self, stream: int) -> None:
        """Return when everything in `stream` is through."""
        self._do("cudaStreamSynchronize", self._runtime.streamSynchronize, stream)

    def is_capturing(self, stream: int) -> bool:
        """Whether a graph is being captured from `stream`."""
        function = self._runtime.streamIsCapturing
        return bool(self._do("cudaStreamIsCapturing", function, stream, advice=_STREAM))

    def new_event(self) -> int:
        """Return an event without timing."""
        runtime = self._runtime
        return int(
            self._do(
                "cudaEventCreateWithFlags", runtime.eventCreateWithFlags, runtime.eventDisableTiming
            )
        )

    def free_event(self, event: int) -> None:
        """Destroy an event."""
        self._do("cudaEventDestroy", self._runtime.eventDestroy, event)

    def record(self, event: int, stream: int) -> None:
        """Let `event` stand for what is in `stream` by now."""
        self._do("cudaEventRecord", self._runtime.eventRecord, event, stream, advice=_STREAM)

    def is_through(self, event: int) -> bool:
        """Whether what `event` stands for is through; does not block."""
        runtime = self._runtime
        # Unlike all others of cupy's calls, this one returns its status and raises nothing.
        status = int(self._do("cudaEventQuery", runtime.eventQuery, event))
        if status not in (_SUCCESS, _NOT_READY):
            self._fail("cudaEventQuery", runtime.CUDARuntimeError(status), "")
        return status == _SUCCESS

    def wait(self, stream: int, event: int) -> None:
        """Let `stream` go on only when what `event` stands for is through; does not block."""
        self._do("cudaStreamWaitEvent", self._runtime.streamWaitEvent, stream, event)

    def most_blocks(self) -> int:
        """Return how many blocks of the kernel run on the device at a time."""
        return int(self._do("cuOccupancyMaxActiveBlocksPerMultiprocessor", self._kernels.most))

    def prepare(self, dtype: int) -> None:
        """Have the kernel for element type `dtype` compiled and loaded."""
        self._do("cuModuleLoadData", self._kernels.function, dtype)

    def launch(self, call: int, dtype: int, blocks: int, stream: int) -> None:
        """Run the kernel for element type `dtype` on the `DeviceCall` at host address `call`."""
        function = self._kernels.functions[dtype] or self._do(
            "cuModuleLoadData", self._kernels.function, dtype
        )
        cell = self._cells.get(call)
        if cell is None:
            cell = self._cells[call] = ctypes.c_void_p(call)
        self._do(
            "cuLaunchKernel",
            self._driver.launchKernel,
            function,
            blocks,
            1,
            1,
            THREADS,
            1,
            1,
            0,
            stream,
            ctypes.addressof(cell),
            0,
            advice=_STREAM,
        )


_CAPTURED = "while a graph is captured, calls go into streams of their own, not the default one"
_STREAM = "a stream of another device, or one that is destroyed, does not do"


def _uuid(raw: bytes, bus_id: str) -> str:
    """Return a device's name as nvidia-smi has it.

    cupy ends it at the first byte that is 0; what is left then is a name for one GPU.
    """
    whole = len(raw) >= _UUID_BYTES
    return f"GPU-{uuid.UUID(bytes=raw[:_UUID_BYTES])}" if whole else f"{bus_id}/{raw.hex()}"


def _first_line(err: Exception) -> str:
    return next(iter(f"{err}".strip().splitlines()), type(err).__name__)


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
