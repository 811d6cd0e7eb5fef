"""From a control plane to a communicator: who is where, on which plan, over which memory.

`runtime` does it for the ranks of the job and for subsets of them, `nccl` for ranks that share a
unique id, others for control planes of their own. Nothing here is kept: who assembles also closes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from blinkrun import env
from blinkrun.comm import world as places
from blinkrun.communicator import Communicator
from blinkrun.errors import LaunchError
from blinkrun.executors import cpu, joining
from blinkrun.executors.agreed import agreed_plan
from blinkrun.planner.plan import Plan

if TYPE_CHECKING:
    from blinkrun.comm.base import ControlPlane
    from blinkrun.comm.world import World
    from blinkrun.executors.base import Executor
    from blinkrun.executors.emulation import Emulation
    from blinkrun.planner.hosts_plan import HostsPlan
    from blinkrun.topology.between import Network
    from blinkrun.topology.graph import Topology
    from blinkrun.types import Rank


def assemble(  # noqa: PLR0913
    control: ControlPlane,
    *,
    timeout_s: float,
    names: Sequence[Rank] | None = None,
    plan: Plan | HostsPlan | None = None,
    emulation: Emulation | None = None,
    networks: Sequence[Network] | None = None,
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
    plan : Plan or HostsPlan, optional
        What collectives run on, the same on all ranks. Default: that of this host's cores, or of
        the emulated machine; the first rank has it from an earlier job or makes it. Over several
        hosts: that of all hosts' cores and the network, which every rank makes.
    emulation : Emulation, optional
        Run at the pace of that machine's links; the same on all ranks.
    networks : sequence of Network, optional
        That of each rank's host, where it is known; the same on all ranks. Default: what
        BLINKRUN_NETWORK_GBPS says, or what is measured.
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
        If ranks of one host cannot share memory; if there are several hosts and no MPI, or one
        that lets no two threads call it, or if the plan or the emulation is of a single host.
    """
    world = places.gather_world(control)
    # Ranks may be bound to a core each: the job has the cores of all of them.
    bound = control.allgather(os.sched_getaffinity(0))
    affinity = frozenset[int]().union(*(bound[rank] for rank in world.local_ranks))
    cores = joining.usable_cores(affinity)
    common: dict[str, Any] = {
        "arena_bytes": env.size_bytes(env.ARENA, arena_bytes or joining.default_arena_bytes()),
        "timeout_s": timeout_s,
        "cores": cores,
        "names": names,
        "sharing": sharing,
    }
    executor: Executor
    if world.cross_size > 1:
        hosts_plan = _for_hosts(world, plan, emulation)
        executor = _over_hosts(control, world, affinity, hosts_plan, networks, common)
    else:
        if not isinstance(plan, Plan):
            links = emulation.topology if emulation else None
            plan = agreed_plan(
                control, lambda: _kept_plan(links or _here(world.local_size, affinity))
            )
        executor = cpu.CpuExecutor(control, world.local_ranks, plan, emulation=emulation, **common)
    return Communicator(control, world, executor, cores, names)


def _for_hosts(
    world: World, plan: Plan | HostsPlan | None, emulation: Emulation | None
) -> HostsPlan | None:
    """Return the plan, if there is one; raises LaunchError if something is of a single host."""
    where = f"the ranks run on {world.cross_size} hosts ({', '.join(world.host_names)})"
    if emulation is not None:
        raise LaunchError(f"{where}, but a machine is emulated on one host")
    if isinstance(plan, Plan):
        raise LaunchError(
            f"{where}, but the plan handed to them ({env.PLAN}, --topology) is of one host; leave"
            " it out: over hosts they plan by what they measure"
        )
    return plan


def _over_hosts(  # noqa: PLR0913, PLR0917 - one call
    control: ControlPlane,
    world: World,
    affinity: Set[int],
    plan: HostsPlan | None,
    networks: Sequence[Network] | None,
    common: Mapping[str, Any],
) -> Executor:
    from blinkrun.executors import meeting  # noqa: PLC0415 - much that one host needs not

    wire = meeting.wire_of(control, world)
    if plan is None:
        plan = meeting.plan_for(control, world, wire, affinity=affinity, networks=networks)
    from blinkrun.executors.hosts import HostsExecutor  # noqa: PLC0415

    return HostsExecutor(control, world, plan, wire, **common)


def _kept_plan(topology: Topology) -> Plan:
    """Return the plan of these links, kept from an earlier job or made."""
    from blinkrun.planner import store  # noqa: PLC0415

    return store.plan_of(topology, store.cache_dir())


def _here(num_ranks: int, affinity: frozenset[int]) -> Topology:
    """Return what joins ranks that share this host's memory."""
    from blinkrun.topology.cpu import cpu_topology  # noqa: PLC0415
    from blinkrun.topology.probe import probe_host  # noqa: PLC0415

    return cpu_topology(probe_host(affinity=affinity), num_ranks)
