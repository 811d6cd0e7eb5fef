"""Devices without a GPU: host memory, threads for streams, the kernel's host build for launches.

    machine = FakeMachine(2)            # two devices; ranks as processes make one each, alike
    machine.install(monkeypatch)        # blinkrun.executors.cuda.open_device gives its devices
    x = machine.devices[0].array((7,), np.float32)
    machine.fail("cudaMalloc", rank=1)  # the next one of rank 1
    assert machine.leaks() == []        # once all is closed
    machine.close()

It is stricter than a device where that shows mistakes: host memory has another address on devices,
kernels touch only what their device may address, and memory given back is never mapped again.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import os
import random
import struct
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from support import fake_kernel, fake_memory, fake_streams
from support.fake_chips import CHIPS, EVENTS, Chip, Fault, event_numbers, size_at
from support.fake_memory import REGIONS
from support.fake_tools import CAPTURING, Tools, named

from blinkrun.errors import DeviceError
from blinkrun.executors import device_memory
from blinkrun.executors.device_api import DeviceInfo

_HANDLE = struct.Struct("<qqqq32x")  # process, descriptor, bytes, device: 64 bytes, as CUDA's


class FakeMachine:
    """Devices of one host, as this process sees them.

    Parameters
    ----------
    count : int
        Devices of the machine.
    visible : sequence of int, optional
        Those that this process sees, in its order; all unless given.
    cut : iterable of pair of int
        Devices that cannot address each other, both ways.
    ipc : bool
        Whether memory can be handed to other processes.
    most_blocks : int
        That run on a device at a time.
    lenient : bool
        Take host memory of any kind for the device's: tensors in disguise.
    delay_s : float
        That every kernel takes longer.
    seed : int, optional
        Of the order in which blocks take turns.
    infos : mapping of int to mapping, optional
        What `DeviceInfo` says differently of some devices: ``{1: {"capability": (7, 5)}}``.
    """

    def __init__(
        self,
        count: int = 1,
        *,
        visible: Sequence[int] | None = None,
        cut: Iterable[tuple[int, int]] = (),
        ipc: bool = True,
        most_blocks: int = 16,
        total_bytes: int = 8 << 30,
        lenient: bool = False,
        delay_s: float = 0.0,
        seed: int | None = None,
        infos: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        self.infos = dict(infos or {})
        self.count, self.ipc, self.lenient, self.delay_s = count, ipc, lenient, delay_s
        self.most_blocks, self.total_bytes = most_blocks, total_bytes
        self.visible = tuple(range(count)) if visible is None else tuple(visible)
        self.cut = {frozenset(pair) for pair in cut}
        self.random = random.Random(seed)
        self.faults: list[Fault] = []
        self.launches: list[tuple[int, int]] = []  # rank and blocks, in the order of the calls
        self.opened: dict[tuple[int, int], FakeDevice] = {}
        self._lock = threading.Lock()
        self._before: tuple[Any, Any] | None = None
        self.chips = [
            Chip(number, index, key=f"{id(self)}:{number}", most_blocks=most_blocks)
            for index, number in enumerate(self.visible)
        ]
        self.devices = [self.open_device(index) for index in range(len(self.visible))]

    def open_device(self, index: int, rank: int = -1) -> FakeDevice:
        """Stand for `blinkrun.executors.cuda.open_device`."""
        if not 0 <= index < len(self.chips):
            raise DeviceError("cudaSetDevice", index, "invalid device ordinal")
        with self._lock:
            if (index, rank) not in self.opened:
                self.opened[index, rank] = FakeDevice(self, self.chips[index], rank)
            return self.opened[index, rank]

    def install(self, monkeypatch: Any = None) -> None:
        """Let blinkrun open these devices, until the test or `close` ends it."""
        module = importlib.import_module("blinkrun.executors.cuda")
        if monkeypatch is not None:
            monkeypatch.setattr(module, "open_device", self.open_device)
            return
        self._before = self._before or (module, module.open_device)
        module.open_device = self.open_device  # type: ignore[attr-defined]

    def fail(
        self,
        call: str,
        *,
        rank: int | None = None,
        device: int | None = None,
        at: int = 1,
        times: int = 1,
        reason: str = "unspecified launch failure",
    ) -> None:
        """Let a call of the runtime, by its CUDA name, fail from the `at`-th time on."""
        self.faults.append(Fault(call, rank, device, at, times, reason))

    def leaks(self, *, within_s: float = 0.0) -> list[str]:
        """Return what was not given back: memory, pins, handles, streams, events.

        Ranks that leave late keep what others have of theirs: within that time they may.
        """
        deadline = time.monotonic() + within_s
        while held := [line for chip in self.chips for line in chip.held()]:
            if time.monotonic() > deadline:
                break
            device_memory.sweep()
            time.sleep(0.005)
        return held

    def capturing(self) -> bool:
        return any(s.capture is not None for chip in self.chips for s in chip.all_streams())

    def close(self) -> None:
        """Wait for all work, end the threads, put back what `install` replaced."""
        for chip in self.chips:
            fake_streams.until(chip.idle, f"the work of device {chip.index}")
            for stream in chip.all_streams():
                stream.end()
        if self._before is not None:
            module, opener = self._before
            module.open_device = opener
            self._before = None


class FakeDevice(Tools):
    """A `DeviceApi`; every rank has its own, those of one device share streams and memory."""

    def __init__(self, machine: FakeMachine, chip: Chip, rank: int) -> None:
        self.machine, self.chip, self.rank = machine, chip, rank
        self.peers = {chip.key}
        number = chip.number
        info = DeviceInfo(
            index=chip.index,
            name="Fake device",
            uuid=f"GPU-fa4efa4e-0000-0000-0000-{number:012x}",
            pci_bus_id=f"00000000:{number + 1:02X}:00.0",
            capability=(9, 0),
            multiprocessors=machine.most_blocks,
            total_bytes=machine.total_bytes,
            driver=13020,
            runtime=13020,
        )
        self.info = dataclasses.replace(info, **machine.infos.get(number, {}))

    def _event(self, number: int, call: str) -> fake_streams.Event:
        if number not in self.chip.events:
            raise self.error(call, "invalid resource handle")
        return EVENTS[number]

    # Memory.

    @named("cudaMemGetInfo", captured=False)
    def free_bytes(self) -> int:
        return self.machine.total_bytes - self.chip.taken_bytes()

    @named("cudaMalloc", captured=False)
    def malloc(self, num_bytes: int) -> int:
        if num_bytes > self.free_bytes():
            raise self.error("cudaMalloc", "out of memory")
        pointer = fake_memory.new_memory(self.chip.key, num_bytes)
        self.chip.memory.add(pointer)
        return pointer

    @named("cudaFree", captured=False)
    def free(self, pointer: int) -> None:
        if pointer not in self.chip.memory:
            raise self.error("cudaFree", "invalid argument")
        fake_streams.until(self.chip.idle, "cudaFree waits for the device, which")
        self.chip.memory.discard(pointer)
        fake_memory.give_back(REGIONS.at(pointer))

    @named("cudaHostAlloc", captured=False)
    def host_alloc(self, num_bytes: int) -> tuple[int, int]:
        here, there = fake_memory.host_memory(num_bytes)
        self.chip.pinned[here] = there
        return here, there

    @named("cudaFreeHost", captured=False)
    def host_free(self, pointer: int) -> None:
        if pointer not in self.chip.pinned:
            raise self.error("cudaFreeHost", "invalid argument")
        fake_streams.until(self.chip.idle, "cudaFreeHost waits for the device, which")
        region = REGIONS.at(self.chip.pinned.pop(pointer))
        fake_memory.give_back(region)
        fake_memory.release(pointer, region.stop - region.start)

    @named("cudaHostRegister", captured=False)
    def register_host(self, pointer: int, num_bytes: int) -> int:
        if pointer in self.chip.registered:
            raise self.error("cudaHostRegister", "part or all of the memory is already registered")
        there = fake_memory.second_mapping(pointer, num_bytes)
        self.chip.registered[pointer] = there
        return there

    @named("cudaHostUnregister", captured=False)
    def unregister_host(self, pointer: int) -> None:
        if pointer not in self.chip.registered:
            raise self.error(
                "cudaHostUnregister", "pointer does not correspond to registered memory"
            )
        there = self.chip.registered.pop(pointer)
        region = REGIONS.holding(there)
        if there == pointer:  # was not mapped a second time
            REGIONS.drop(region.start)
        else:
            fake_memory.give_back(region)

    @named("cudaIpcGetMemHandle")
    def export(self, pointer: int) -> bytes:
        if not self.machine.ipc:
            raise self.error("cudaIpcGetMemHandle", "operation not supported")
        if pointer not in self.chip.memory:
            raise self.error("cudaIpcGetMemHandle", "invalid argument")
        region = REGIONS.at(pointer)
        size = region.stop - region.start
        return _HANDLE.pack(os.getpid(), region.fd, size, self.chip.number)

    @named("cudaIpcOpenMemHandle")
    def open(self, handle: bytes) -> int:
        pid, fd, size, number = _HANDLE.unpack(handle)
        if not self.machine.ipc:
            raise self.error("cudaIpcOpenMemHandle", "operation not supported")
        if pid == os.getpid():
            raise self.error("cudaIpcOpenMemHandle", "invalid device context")
        if self._apart(number):
            raise self.error(
                "cudaIpcOpenMemHandle", "peer access is not supported between these two devices"
            )
        address, times = self.chip.opened.get(handle, (0, 0))
        if not times:
            address = self._open(pid, fd, size)
        self.chip.opened[handle] = (address, times + 1)
        return address

    def _open(self, pid: int, fd: int, size: int) -> int:
        try:
            theirs = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            raise self.error("cudaIpcOpenMemHandle", "invalid resource handle") from None
        address = fake_memory.map_fd(theirs, size)
        region = fake_memory.Region(address, address + size, self.chip.key, theirs, opened=True)
        REGIONS.add(region)
        return address

    @named("cudaIpcCloseMemHandle")
    def close(self, pointer: int) -> None:
        handles = [key for key, (address, _) in self.chip.opened.items() if address == pointer]
        if not handles:
            raise self.error("cudaIpcCloseMemHandle", "invalid argument")
        handle = handles[0]
        times = self.chip.opened[handle][1]
        self.chip.opened[handle] = (pointer, times - 1)
        if times == 1:
            fake_streams.until(self.chip.idle, "the device, before memory is closed,")
            del self.chip.opened[handle]
            fake_memory.give_back(REGIONS.at(pointer))

    # Peers.

    def _apart(self, number: int) -> bool:
        return frozenset((number, self.chip.number)) in self.machine.cut

    def _number_at(self, pci_bus_id: str) -> int:
        return int(pci_bus_id.split(":")[1], 16) - 1

    @named("cudaDeviceCanAccessPeer")
    def can_reach(self, pci_bus_id: str) -> bool | None:
        number = self._number_at(pci_bus_id)
        return not self._apart(number) if number in self.machine.visible else None

    @named("cudaDeviceEnablePeerAccess")
    def enable_peer(self, pci_bus_id: str) -> None:
        number = self._number_at(pci_bus_id)
        if number not in self.machine.visible:
            raise self.error("cudaDeviceEnablePeerAccess", "invalid device ordinal")
        if self._apart(number):
            raise self.error(
                "cudaDeviceEnablePeerAccess",
                "peer access is not supported between these two devices",
            )
        self.peers.add(self.machine.chips[self.machine.visible.index(number)].key)

    # What streams do.

    @named("cudaMemsetAsync")
    def memset(self, pointer: int, value: int, num_bytes: int, stream: int) -> None:
        self._need(pointer, num_bytes, "cudaMemsetAsync")
        work = functools.partial(ctypes.memset, pointer, value, num_bytes)
        self._stream(stream, "cudaMemsetAsync").do(work)

    @named("cudaMemcpyAsync")
    def copy(self, dst: int, src: int, num_bytes: int, stream: int) -> None:
        queue = self._stream(stream, "cudaMemcpyAsync")
        for pointer in (dst, src):
            region = REGIONS.holding(pointer)
            if region is not None and (region.freed or pointer + num_bytes > region.stop):
                raise self.error("cudaMemcpyAsync", "invalid argument")
        source: Any = src
        if self._is_pageable(src):  # CUDA takes it at once as well
            source = ctypes.create_string_buffer(ctypes.string_at(src, num_bytes), num_bytes)
        queue.do(functools.partial(ctypes.memmove, dst, source, num_bytes))
        if self._is_pageable(dst) and not self.machine.lenient:
            queue.mark().wait()

    def _is_pageable(self, pointer: int) -> bool:
        if self.machine.lenient or REGIONS.holding(pointer) is not None:
            return False
        return not any(
            here <= pointer < here + size_at(there)
            for chip in self.machine.chips
            for here, there in (*chip.pinned.items(), *chip.registered.items())
        )

    def _need(self, pointer: int, num_bytes: int, call: str) -> None:
        if not self._may_touch(pointer, num_bytes):
            raise self.error(call, "invalid argument")

    def _may_touch(self, pointer: int, num_bytes: int) -> bool:
        """Whether a kernel on this device, of this rank, may address those bytes."""
        region = REGIONS.holding(pointer)
        if region is None:
            return self.machine.lenient or not num_bytes
        if region.freed or pointer + num_bytes > region.stop:
            return False
        return not region.chip or region.chip in self.peers

    @named("cudaStreamCreateWithPriority", captured=False)
    def new_stream(self, *, high_priority: bool = False) -> int:
        stream = fake_streams.Stream(self.chip.failed)
        self.chip.streams[stream.number] = stream
        return stream.number

    @named("cudaStreamDestroy", captured=False)
    def free_stream(self, stream: int) -> None:
        self._stream(stream, "cudaStreamDestroy").end()
        del self.chip.streams[stream]

    @named("cudaStreamSynchronize")
    def synchronize(self, stream: int) -> None:
        queue = self._stream(stream, "cudaStreamSynchronize")
        if self.machine.capturing():
            if queue.capture is not None:
                queue.capture.broken = CAPTURING
            raise self.error("cudaStreamSynchronize", CAPTURING)
        queue.mark().wait()
        if self.chip.sticky:
            raise self.error("cudaStreamSynchronize", self.chip.sticky)

    @named("cudaStreamIsCapturing")
    def is_capturing(self, stream: int) -> bool:
        return self._stream(stream, "cudaStreamIsCapturing").capture is not None

    @named("cudaEventCreateWithFlags")
    def new_event(self) -> int:
        number = next(event_numbers)
        EVENTS[number] = fake_streams.Event()
        self.chip.events.add(number)
        return number

    @named("cudaEventDestroy")
    def free_event(self, event: int) -> None:
        self._event(event, "cudaEventDestroy")
        self.chip.events.discard(event)
        del EVENTS[event]

    @named("cudaEventRecord")
    def record(self, event: int, stream: int) -> None:
        fake_streams.record(
            self._event(event, "cudaEventRecord"), self._stream(stream, "cudaEventRecord")
        )

    @named("cudaEventQuery", captured=False)
    def is_through(self, event: int) -> bool:
        mark = self._event(event, "cudaEventQuery").mark
        if isinstance(mark, fake_streams.Captured):
            raise self.error(
                "cudaEventQuery",
                "operation not permitted on an event last recorded in a capturing stream",
            )
        return mark is None or mark.passed

    @named("cudaStreamWaitEvent")
    def wait(self, stream: int, event: int) -> None:
        queue = self._stream(stream, "cudaStreamWaitEvent")
        if event not in EVENTS:  # that of another device will do
            raise self.error("cudaStreamWaitEvent", "invalid resource handle")
        fake_streams.wait(queue, EVENTS[event])

    # Kernels.

    def prepare(self, dtype: int) -> None:
        """Build the kernel: one for all types."""
        fake_kernel.load()

    @named("cudaOccupancyMaxActiveBlocksPerMultiprocessor")
    def most_blocks(self) -> int:
        return self.machine.most_blocks

    @named("cuLaunchKernel")
    def launch(self, call: int, dtype: int, blocks: int, stream: int) -> None:
        queue = self._stream(stream, "cuLaunchKernel")
        if not 0 < blocks <= self.machine.most_blocks:
            raise self.error("cuLaunchKernel", f"{blocks} blocks cannot all run at a time")
        kernel = fake_kernel.load()
        words = kernel.call_at(call)
        self.machine.launches.append((self.rank, blocks))
        if kernel.dtype(words) != dtype:
            raise self.error("cuLaunchKernel", f"the call's dtype is not the kernel's, {dtype}")
        queue.do(functools.partial(self._run, kernel, words, blocks))

    def _run(self, kernel: fake_kernel.Kernel, words: bytes, blocks: int) -> None:
        for what, pointer, num_bytes in kernel.places(words):
            if not self._may_touch(pointer, num_bytes):
                raise fake_streams.StreamError(
                    f"an illegal memory access was encountered: {what} of rank {self.rank} at"
                    f" {pointer:#x}, {num_bytes} bytes"
                )
        seed = self.machine.random.getrandbits(64)
        if self.machine.delay_s:
            time.sleep(self.machine.delay_s)
        self.chip.run(blocks, lambda: kernel.run(words, blocks, seed))


def device_at(pointer: int) -> int | None:
    """Return the index of the device whose memory `pointer` lies in; None: no device's."""
    region = REGIONS.holding(pointer)
    return CHIPS[region.chip].index if region is not None and region.chip else None


def fake_threads() -> list[str]:
    """Return the names of threads of streams that are alive."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("fake-stream-")]
