"""Ranks that share a device, for `gpu_check`: threads of this process, or one of many processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from blinkrun.comm.base import ControlPlane
from blinkrun.comm.threads import thread_controls
from blinkrun.comm.world import World
from blinkrun.executors.base import Request
from blinkrun.executors.cpu import CpuExecutor
from blinkrun.executors.device import DeviceExecutor
from blinkrun.executors.device_api import DeviceApi
from blinkrun.executors.device_plan import plan_devices
from blinkrun.planner.plan import Plan
from blinkrun.types import Collective, DType, Op, Rank

Opener = Callable[[int, Rank], Any]  # as `executors.cuda.open_device`: a DeviceApi
Array = npt.NDArray[Any]
_T = TypeVar("_T")

_HOST_ARENA_BYTES = 64 << 20


@dataclass
class GpuRank:
    """One rank: its executor, its device, and a stream for its calls."""

    control: ControlPlane
    executor: DeviceExecutor
    api: DeviceApi
    stream: int
    _memory: list[int] = field(default_factory=list)
    _arena: list[Any] = field(default_factory=list)

    @property
    def rank(self) -> Rank:
        """Among the ranks of the group."""
        return self.executor.rank

    @property
    def size(self) -> int:
        """Of the group."""
        return self.executor.size

    def user(self, num_bytes: int) -> int:
        """Return the address of memory that is not in the arena."""
        self._memory.append(self.api.malloc(num_bytes))
        return self._memory[-1]

    def arena(self, num_bytes: int) -> int:
        """Return the address of memory in the arena."""
        memory = self.executor.empty_bytes(num_bytes)
        self._arena.append(memory)
        return memory.pointer

    def upload(self, pointer: int, array: Array) -> None:
        """Put the bytes of `array` at `pointer`."""
        if array.nbytes:
            self.api.copy(pointer, array.ctypes.data, array.nbytes, self.stream)
            self.api.synchronize(self.stream)

    def download(self, pointer: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return the bytes at `pointer`."""
        array = np.empty(num_bytes, np.uint8)
        if num_bytes:
            self.api.copy(array.ctypes.data, pointer, num_bytes, self.stream)
            self.api.synchronize(self.stream)
        return array

    def request(  # noqa: PLR0913
        self,
        collective: Collective,
        dtype: DType,
        pointers: tuple[int, int],
        count: int,
        *,
        op: Op = Op.SUM,
        root: Rank = 0,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> Request:
        """Return a call on input and output of this device, in the rank's stream."""
        index = self.api.info.index
        return Request(
            collective, dtype, op, root, *pointers, count, *scales, stream=self.stream, device=index
        )

    def barrier(self) -> None:
        """Wait for the other ranks, on the host."""
        self.control.allgather(None)

    def close(self) -> None:
        """Give everything back, after the executor has left: freeing waits for its kernels."""
        for pointer in self._memory:
            self.api.free(pointer)
        self.api.free_stream(self.stream)


def device_plan(opener: Opener, size: int) -> Plan:
    """Return the plan of `size` ranks on device 0."""
    info = opener(0, -1).info
    reach = ((True,) * size,) * size
    return plan_devices([info] * size, reach, sharing=size)


@contextmanager
def joined(
    control: ControlPlane, plan: Plan, opener: Opener, *, timeout_s: float, arena_bytes: int
) -> Iterator[GpuRank]:
    """Join the ranks of `control` on device 0 until the end of the context."""
    rank, size = control.rank, control.size
    api = opener(0, rank)
    host = CpuExecutor(
        control, range(size), plan, arena_bytes=_HOST_ARENA_BYTES, timeout_s=timeout_s, cores=1
    )
    try:
        executor = DeviceExecutor(
            control,
            World(rank, size, ("host",) * size, (tuple(range(size)),)),
            host,
            api,
            make_plan=lambda infos, reach: plan,
            timeout_s=timeout_s,
            arena_bytes=arena_bytes,
        )
        me = GpuRank(control, executor, api, api.new_stream())
        try:
            yield me
            me.barrier()  # nobody's kernel still runs
        except BaseException as err:
            host.group.abort(f"rank {rank} failed: {err}")  # the others' kernels end
            raise
        finally:
            executor.close()
            me.close()
    finally:
        host.group.close()


def run_threads(  # noqa: PLR0913
    size: int,
    body: Callable[[GpuRank], _T],
    opener: Opener,
    *,
    timeout_s: float,
    arena_bytes: int,
    deadline_s: float,
) -> list[_T]:
    """Return what `body` returned on each of `size` ranks that share device 0.

    Raises
    ------
    TimeoutError
        If ranks have not ended after `deadline_s`.
    BaseException
        The first that any rank raised.
    """
    plan = device_plan(opener, size)
    controls = thread_controls(size, timeout_s)
    results: dict[int, _T] = {}
    errors: list[BaseException] = []

    def act(number: int) -> None:
        try:
            with joined(
                controls[number], plan, opener, timeout_s=timeout_s, arena_bytes=arena_bytes
            ) as me:
                try:
                    results[number] = body(me)
                except BaseException as err:  # before others fail for want of this rank
                    errors.append(err)
                    raise
        except BaseException as err:  # raised again below, in the caller's thread
            errors.append(err)
            controls[number].abort(1)

    threads = [
        threading.Thread(target=act, args=(number,), name=f"rank {number}", daemon=True)
        for number in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline_s)
    if errors:
        raise errors[0]
    alive = [thread.name for thread in threads if thread.is_alive()]
    if alive:
        raise TimeoutError(f"not through after {deadline_s:g} s: {', '.join(alive)}")
    return [results[number] for number in range(size)]
