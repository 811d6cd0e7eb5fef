"""The executor for ranks of one host that share memory.

It owns the group of the native core: joins it, loads the programs that the plan gives, and runs
calls. Which program runs is decided per call, the same on all ranks: the one-shot program for
small blocks, the direct one where every buffer lies in the arena, else the staged one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blinkrun.comm.base import ControlPlane
from blinkrun.errors import InvalidBufferError
from blinkrun.executors import native
from blinkrun.executors.rendezvous import exchange, make_memory
from blinkrun.planner.plan import Plan
from blinkrun.schedule.encode import encode
from blinkrun.schedule.ir import Addressing
from blinkrun.schedule.lower import lower
from blinkrun.types import Collective, DType, Op, Rank

JOIN_TIMEOUT_S = 60.0
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Tuning:
    """How the executor waits and cuts; measured on shared-memory hosts (docs/benchmarks).

    Attributes
    ----------
    spins : int
        Looks at a flag before yielding the core; 0 where ranks outnumber cores.
    yield_s : float
        Seconds of yielding before sleeping on a futex.
    chunk_bytes : int
        Largest chunk of a pipelined program.
    eager_bytes : int
        Largest block that goes the one-shot way.
    """

    spins: int
    yield_s: float
    chunk_bytes: int
    eager_bytes: int


def tuning(local_size: int, cores: int, *, one_session: bool = True) -> Tuning:
    """Return the tuning for `local_size` ranks on `cores` cores.

    Linux groups processes by session for scheduling (autogroup), and yielding gives way only
    inside a group. Ranks that share cores but no session (MPICH makes one for each) would yield to
    nobody until their time slice ends: they sleep at once.
    """
    chunk_bytes, eager_bytes = 64 << 10, 2 << 10
    if local_size <= cores:
        return Tuning(2000, 1e-3, chunk_bytes, eager_bytes)
    return Tuning(0, 5e-4 if one_session else 0.0, chunk_bytes, eager_bytes)


def usable_cores(affinity: Set[int]) -> int:
    """Return how many of the cores in `affinity` the cgroup's quota leaves."""
    cores = len(affinity)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def default_arena_bytes() -> int:
    """Return the address space of an arena: the host's memory; only what is touched counts."""
    return max(os.sysconf("SC_PHYS_PAGES") * PAGE, 1 << 30)


@dataclass(frozen=True, slots=True)
class Request:
    """One call, in addresses: what the core needs to know. `keep` keeps the memory alive."""

    collective: Collective
    dtype: DType
    op: Op
    root: int
    input: int
    output: int
    count: int
    prescale: float
    postscale: float
    keep: tuple[Any, ...] = ()

    def args(self) -> tuple[int, int, int, int, int, int, int, float, float]:
        """Return the arguments of the core's `run` and `submit`."""
        return (
            int(self.collective),
            int(self.dtype),
            int(self.op),
            self.root,
            self.input,
            self.output,
            self.count,
            self.prescale,
            self.postscale,
        )


class CpuExecutor:
    """One rank's part in the group of its host; every rank of the host must make one."""

    def __init__(  # noqa: PLR0913
        self,
        control: ControlPlane,
        ranks: Sequence[Rank],
        plan: Plan,
        *,
        arena_bytes: int,
        timeout_s: float,
        cores: int,
    ) -> None:
        self.plan = plan
        self.rank = ranks.index(control.rank)
        self.size = len(ranks)
        self.timeout_s = timeout_s
        arena_bytes = -(-max(arena_bytes, native.ARENA_RESERVED + PAGE) // PAGE) * PAGE
        files = exchange(
            control,
            ranks,
            make_control=self._make_control,
            arena_bytes=arena_bytes,
            timeout_s=JOIN_TIMEOUT_S,
        )
        sessions = set(control.allgather(os.getsid(0)))
        choice = tuning(self.size, cores, one_session=len(sessions) == 1)
        try:
            self.group = native.Group(
                rank=self.rank,
                names=list(ranks),
                control_fd=files.control,
                arena_fds=list(files.arenas),
                arena_bytes=arena_bytes,
                timeout_s=timeout_s,
                spins=choice.spins,
                yield_s=choice.yield_s,
                chunk_bytes=choice.chunk_bytes,
                eager_bytes=choice.eager_bytes,
            )
        finally:
            files.close()
        self.fast = self.group.fast()
        self.load(Collective.ALLREDUCE, 0)

    def _make_control(self) -> int:
        fd = make_memory("control", native.control_bytes(self.size))
        native.format_control(fd, self.size)
        return fd

    def load(self, collective: Collective, root: Rank) -> None:
        """Lower the programs of `collective` and hand them to the core, if it has them not yet."""
        if self.group.covers(int(collective), root):
            return
        ways = [Addressing.DIRECT, Addressing.STAGED]
        if collective is Collective.ALLREDUCE:  # gradients come from anywhere and stay in buckets
            ways.append(Addressing.OUTPUT_ONLY)
        for addressing in ways:
            program = lower(self.plan, collective, root=root, addressing=addressing)
            self.group.load(encode(program, self.rank))
        self.group.load(encode(lower(self.plan, collective, root=root, eager=True), self.rank))

    def run(self, request: Request) -> None:
        """Run one call to its end."""
        self.load(request.collective, request.root)
        self.group.run(*request.args())

    def submit(self, request: Request) -> Any:
        """Queue one call for the helper thread; the job's `wait()` raises what went wrong."""
        self.load(request.collective, request.root)
        return self.group.submit(*request.args())

    def empty_bytes(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return `num_bytes` of arena memory; it is given back when the array is gone."""
        try:
            return np.asarray(self.group.empty(num_bytes))
        except MemoryError:
            raise InvalidBufferError(
                f"the arena has no {num_bytes} bytes left ({self.group.arena_in_use()} in use);"
                " set BLINKRUN_ARENA_BYTES to more"
            ) from None

    def contains(self, pointer: int) -> bool:
        """Whether `pointer` lies in this rank's arena."""
        return bool(self.group.contains(pointer))
