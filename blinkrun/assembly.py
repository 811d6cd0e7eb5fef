"""From a control plane to a communicator: who is where, on which plan, over which memory.

`runtime` does it for the ranks of the job and for subsets of them, `nccl` for ranks that share a
unique id, others for control planes of their own. Nothing here is kept: who assembles also closes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blinkrun import env
from blinkrun.comm import world as places
from blinkrun.communicator import Communicator
from blinkrun.errors import LaunchError
from blinkrun.executors import cpu, joining
from blinkrun.planner.plan import Plan

if TYPE_CHECKING:
    from blinkrun.comm.base import ControlPlane
    from blinkrun.executors.emulation import Emulation
    from blinkrun.topology.graph import Topology
    from blinkrun.types import Rank


def assemble(  # noqa: PLR0913
    control: ControlPlane,
    *,
    timeout_s: float,
    names: Sequence[Rank] | None = None,
    plan: Plan | None = None,
    emulation: Emulation | None = None,
    sharing: int = 0,
    arena_bytes: int = 0,
) -> Communicator:
    """Return a communicator of the ranks of `control`; every one of them must call it.

    Parameters
    ----------
    control : ControlPlane
        How the ranks find each other. The communicator uses it for objects, as long as it lives.
    timeout_s : float
        Longest wait for other ranks in a collective, in seconds.
    names : sequence of Rank, optional
        Numbers of the ranks in messages, such as those that a subset has in the job.
    plan : Plan, optional
        What collectives run on, the same on all ranks. Default: that of this host's cores, or of
        the emulated machine; the first rank has it from an earlier job or makes it.
    emulation : Emulation, optional
        Run at the pace of that machine's links; the same on all ranks.
    sharing : int, optional
        Ranks that share the host's cores, where there are more than those of `control`.
    arena_bytes : int, optional
        Address space of each rank's arena, unless BLINKRUN_ARENA_BYTES says. Default: as much as
        the host has memory; only what is touched counts.

    Returns
    -------
    Communicator
        To be closed by the caller.

    Raises
    ------
    LaunchError
        If the ranks are on several hosts or cannot share memory.
    """
    world = places.gather_world(control)
    if world.cross_size > 1:
        hosts = sorted(set(world.hosts))
        raise LaunchError(
            f"the ranks run on {world.cross_size} hosts ({', '.join(hosts)}); this version of"
            " blinkrun runs on one host"
        )
    # Ranks may be bound to a core each: the job has the cores of all of them.
    affinity = frozenset[int]().union(*control.allgather(os.sched_getaffinity(0)))
    cores = joining.usable_cores(affinity)
    if plan is None:
        plan = agreed_plan(
            control,
            lambda: _kept_plan(
                emulation.topology if emulation else _here(world.local_size, affinity)
            ),
        )
    executor = cpu.CpuExecutor(
        control,
        world.local_ranks,
        plan,
        arena_bytes=env.size_bytes(env.ARENA, arena_bytes or joining.default_arena_bytes()),
        timeout_s=timeout_s,
        cores=cores,
        names=names,
        sharing=sharing,
        emulation=emulation,
    )
    return Communicator(control, world, executor, cores)


def agreed_plan(control: ControlPlane, make: Callable[[], Plan]) -> Plan:
    """Return on every rank what `make` returns on the first, the only one that calls it.

    Raises
    ------
    LaunchError
        On the other ranks, if `make` raises on the first.
    """
    text = None
    error = None
    if control.rank == 0:
        try:
            text = make().to_json()
        except Exception as err:
            error = err
    text, reason = control.broadcast((text, None if error is None else f"{error}"))
    if error is not None:
        raise error
    if text is None:
        raise LaunchError(f"{reason} (rank 0 could not plan)")
    return Plan.from_json(text)


def _kept_plan(topology: Topology) -> Plan:
    """Return the plan of these links, kept from an earlier job or made."""
    from blinkrun.planner import store  # noqa: PLC0415

    return store.plan_of(topology, store.cache_dir())


def _here(num_ranks: int, affinity: frozenset[int]) -> Topology:
    """Return what joins ranks that share this host's memory."""
    from blinkrun.topology.cpu import cpu_topology  # noqa: PLC0415
    from blinkrun.topology.probe import probe_host  # noqa: PLC0415

    return cpu_topology(probe_host(affinity=affinity), num_ranks)
