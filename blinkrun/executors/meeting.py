"""What hosts tell each other before their ranks run together: their cores, and the network.

All ranks come to the same plan from it, each by itself.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from fractions import Fraction

from blinkrun import env
from blinkrun.comm.base import ControlPlane, Wire
from blinkrun.comm.network import by_host, measure
from blinkrun.comm.world import World
from blinkrun.errors import LaunchError
from blinkrun.planner.hosts_plan import HostsPlan
from blinkrun.topology.between import MB_PER_S_PER_GBPS, Network
from blinkrun.topology.cpu import cpu_topology
from blinkrun.topology.probe import probe_host

MEET_TIMEOUT_S = 60.0  # for other hosts, while the network is measured
USUAL_LATENCY_US = 30  # of a network whose rate is said and not measured


def plan_for(
    control: ControlPlane,
    world: World,
    wire: Wire,
    *,
    affinity: Set[int],
    networks: Sequence[Network] | None = None,
) -> HostsPlan:
    """Return what all ranks run on; every rank of `control` must call it.

    Parameters
    ----------
    control : ControlPlane
        Of the ranks in `world`, as is `wire`.
    affinity : set of int
        Processors of this host that its ranks may use.
    networks : sequence of Network, optional
        That of each rank's host, where it is known; the same on all ranks. Default: what
        BLINKRUN_NETWORK_GBPS says on each host, else what is measured now.

    Raises
    ------
    UsageError
        If BLINKRUN_NETWORK_GBPS is no rate.
    CollectiveTimeoutError
        If a host does not answer over the network.
    """
    leads = world.rank in world.leaders
    own = cpu_topology(probe_host(affinity=affinity), world.local_size) if leads else None
    said = control.allgather((own, env.network_gbps() if leads else None))
    rates = [said[leader][1] for leader in world.leaders]
    if networks is not None:
        found = tuple(networks[leader] for leader in world.leaders)
    elif None not in rates:
        found = tuple(Network.of_gbps(rate, latency_us=USUAL_LATENCY_US) for rate in rates)
    else:
        found = _measured(control, world, wire, rates)
    hosts = tuple(said[leader][0] for leader in world.leaders)
    return HostsPlan(hosts, world.groups, found)


def wire_of(control: ControlPlane, world: World) -> Wire:
    """Return what carries messages between the hosts; every rank must call it.

    Raises
    ------
    LaunchError
        If there is no MPI, or one that does not let several threads call it at a time.
    """
    wire = control.wire()
    if wire is None:
        raise LaunchError(
            f"the ranks run on {world.cross_size} hosts ({', '.join(world.host_names)}), which only"
            " MPI joins: start them with blinkrun -H, mpiexec or srun"
        )
    return wire


def _measured(
    control: ControlPlane, world: World, wire: Wire, rates: Sequence[Fraction | None]
) -> tuple[Network, ...]:
    """Return every host's network; a host that has said its rate has that."""
    came = measure(wire, rank=world.rank, leaders=world.leaders, timeout_s=MEET_TIMEOUT_S)
    everyone = control.allgather(came)
    found = by_host([everyone[leader] for leader in world.leaders])
    return tuple(
        Network(each.mb_per_s if rate is None else rate * MB_PER_S_PER_GBPS, each.latency_us)
        for each, rate in zip(found, rates, strict=True)
    )
