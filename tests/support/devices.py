"""Ranks on fake devices, as threads of this process: each has an executor for its device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.fake_arrays import FakeArray
from support.fake_cuda import FakeDevice, FakeMachine

from blinkrun.comm.base import ControlPlane
from blinkrun.comm.threads import thread_controls
from blinkrun.comm.world import World
from blinkrun.executors.base import Request
from blinkrun.executors.cpu import CpuExecutor
from blinkrun.executors.device import DeviceExecutor
from blinkrun.executors.native import ARENA_RESERVED, NUMPY_DTYPES, register_bfloat16
from blinkrun.planner.plan import Plan
from blinkrun.types import Collective, Op

_MANY_IN = (Collective.REDUCESCATTER, Collective.ALLTOALL)
_MANY_OUT = (Collective.ALLGATHER, Collective.ALLTOALL)
# Bytes; the area in host memory that some devices need is as large as the slots.
DEVICE_ARENA, SCRATCH = 64 << 20, 4 << 20
HOST_ARENA = ARENA_RESERVED + (32 << 20)
register_bfloat16()


@dataclass
class DeviceRank:
    """One rank: its executor, and its device as tests use it."""

    executor: DeviceExecutor
    host: CpuExecutor
    device: FakeDevice

    @property
    def rank(self) -> int:
        return self.executor.rank

    @property
    def size(self) -> int:
        return self.executor.size

    def request(
        self,
        collective: Collective,
        x: FakeArray | None,
        out: FakeArray | None,
        op: Op = Op.SUM,
        *,
        root: int = 0,
        scales: tuple[float, float] = (1.0, 1.0),
        stream: int = 0,
    ) -> Request:
        """Return a call whose blocks are those that the arrays hold; a side may have none."""
        shown = x if x is not None else out
        if shown is None:
            raise ValueError("a call has an input or an output")
        many = _MANY_IN if x is not None else _MANY_OUT
        return Request(
            collective,
            NUMPY_DTYPES[shown.dtype],
            op,
            root,
            x.pointer if x is not None else 0,
            out.pointer if out is not None else 0,
            shown.size // (self.size if collective in many else 1),
            *scales,
            keep=(x, out),
            stream=stream,
            device=self.device.chip.index,
        )

    def run(self, collective: Collective, *args: Any, stream: int = 0, **how: Any) -> None:
        """Put a call into `stream` (see `request`)."""
        self.executor.run(self.request(collective, *args, stream=stream, **how))

    def in_arena(self, shape: int, dtype: Any) -> FakeArray:
        """Return an array in the arena of the device."""
        kind = np.dtype(dtype)
        memory = self.executor.empty_bytes(max(shape * kind.itemsize, 1))
        return FakeArray(
            memory.pointer, (shape,), kind, device=self.device.chip.index, memory=memory
        )


Body = Callable[[DeviceRank], Any]


@contextlib.contextmanager
def joined(
    control: ControlPlane, plan: Plan, api: FakeDevice, *, timeout_s: float, **options: Any
) -> Iterator[DeviceRank]:
    """Join the ranks of `control`, each with its device, until the end of the context."""
    rank, size = control.rank, control.size
    host = CpuExecutor(
        control, range(size), plan, arena_bytes=HOST_ARENA, timeout_s=timeout_s, cores=1
    )
    try:
        how = {"arena_bytes": DEVICE_ARENA, "scratch_bytes": SCRATCH, **options}
        executor = DeviceExecutor(
            control,
            World(rank, size, ("host",) * size, (tuple(range(size)),)),
            host,
            api,
            make_plan=lambda infos, reach: plan,
            timeout_s=timeout_s,
            **how,
        )
        try:
            yield DeviceRank(executor, host, api)
        finally:
            executor.close()
    finally:
        host.group.close()
        host.group.leave()


def run_devices(
    plan: Plan,
    body: Body,
    *,
    machine: FakeMachine | None = None,
    devices: Sequence[int] | None = None,
    timeout_s: float = 20.0,
    catch: bool = False,
    **options: Any,
) -> list[Any]:
    """Return what `body` returned on every rank; the first exception of any is raised.

    Parameters
    ----------
    plan : Plan
        What the programs are made of.
    body : callable
        Of a `DeviceRank`.
    machine : FakeMachine, optional
        A machine with a device for every rank, closed at the end, unless given.
    devices : sequence of int, optional
        Which device each rank has.
    catch : bool
        Let ranks go on when one has failed, and return the exceptions as results.
    options
        Of `DeviceExecutor`.
    """
    size = plan.size
    own = machine or FakeMachine(size, seed=0)
    controls = thread_controls(size, timeout_s)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def act(number: int) -> None:
        api = own.open_device((devices or range(size))[number], number)
        with joined(controls[number], plan, api, timeout_s=timeout_s, **options) as me:
            results[number] = body(me)

    def rank(number: int) -> None:
        try:
            act(number)
        except BaseException as err:  # shown by the test that called
            results[number] = err
            errors.append(err)
            if not catch:
                controls[number].abort(1)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s + 20)
    alive = [thread.name for thread in threads if thread.is_alive()]
    if alive:
        raise TimeoutError(f"ranks that did not end: {alive}")
    if machine is None:
        own.close()
    if errors and not catch:
        raise errors[0]
    return results
