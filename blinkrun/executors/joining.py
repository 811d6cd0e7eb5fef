"""How the ranks of one host make a group of the native core, and how it waits there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blinkrun.comm.base import ControlPlane
from blinkrun.executors import native
from blinkrun.executors.rendezvous import exchange, make_memory
from blinkrun.types import Rank

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


def join(  # noqa: PLR0913
    control: ControlPlane,
    ranks: Sequence[Rank],
    *,
    names: Sequence[Rank],
    arena_bytes: int,
    timeout_s: float,
    cores: int,
    sharing: int = 0,
    rates: Sequence[int] = (),
    within_reach: Callable[[int], bool] | None = None,
    more: Mapping[str, Any] | None = None,
) -> native.Group:
    """Return this rank's group; every rank of `control` must call it, on whichever host it is.

    Parameters
    ----------
    control : ControlPlane
        How the ranks find each other; not used afterwards.
    ranks : sequence of Rank
        Those of this host, in `control`.
    names : sequence of Rank
        Their numbers in messages.
    arena_bytes : int
        Address space of each rank's arena; made whole pages.
    timeout_s : float
        Longest wait for other ranks in a call, in seconds.
    cores : int
        That the ranks share.
    sharing : int, optional
        Ranks of the job that share the cores, where they are more than `ranks`.
    rates : sequence of int, optional
        Of an emulated machine's resources.
    within_reach : callable, optional
        Says which ranks' arenas to map, by index; default: all.
    more : mapping, optional
        Other arguments of the group.

    Raises
    ------
    LaunchError
        If the ranks cannot share memory.
    """
    arena_bytes = -(-max(arena_bytes, native.ARENA_RESERVED + PAGE) // PAGE) * PAGE

    def make_control() -> int:
        fd = make_memory("control", native.control_bytes(len(ranks), len(rates)))
        native.format_control(fd, len(ranks), len(rates))
        return fd

    files = exchange(
        control,
        ranks,
        make_control=make_control,
        arena_bytes=arena_bytes,
        timeout_s=JOIN_TIMEOUT_S,
    )
    arenas = list(files.arenas)
    if within_reach is not None:
        arenas = [fd if within_reach(at) else -1 for at, fd in enumerate(arenas)]
    sessions = control.allgather(os.getsid(0))
    one_session = len({sessions[rank] for rank in ranks}) == 1
    choice = tuning(max(len(ranks), sharing), cores, one_session=one_session)
    try:
        return native.Group(
            rank=ranks.index(control.rank),
            names=list(names),
            control_fd=files.control,
            arena_fds=arenas,
            arena_bytes=arena_bytes,
            timeout_s=timeout_s,
            spins=choice.spins,
            yield_s=choice.yield_s,
            chunk_bytes=choice.chunk_bytes,
            eager_bytes=choice.eager_bytes,
            rates=list(rates),
            **(more or {}),
        )
    finally:
        files.close()
