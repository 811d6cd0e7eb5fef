"""Which ranks can be planned together: the parts that links join."""

from __future__ import annotations

from blinkrun.planner.network import Network, network_of
from blinkrun.planner.packing import Flow
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank


def parts(topology: Topology, flow: Flow = Flow.BOTH) -> tuple[tuple[Rank, ...], ...]:
    """Return the ranks in groups that trees of `flow` can span.

    Parameters
    ----------
    topology : Topology
        Relays join ranks, but are not listed.
    flow : Flow, default BOTH
        An edge of allreduce needs links both ways. For the others, ranks are in one part if each
        has a way to each other one; a broadcast may still lead from one part to another.

    Returns
    -------
    tuple of tuple of Rank
        Every rank once, in ascending order; one part if all can be reached.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> parts(induce(machine("dgx-1v"), (0, 1, 6, 7)))
    ((0, 1), (2, 3))
    """
    network = network_of(topology, flow)
    reached = [_reached(network, rank) for rank in range(network.size)]
    groups: dict[Rank, list[Rank]] = {}
    for rank in range(network.size):
        first = min(other for other in reached[rank] if rank in reached[other])
        groups.setdefault(first, []).append(rank)
    return tuple(map(tuple, groups.values()))


def _reached(network: Network, start: Rank) -> set[Rank]:
    """Return the ranks that a way leads to, also through relays."""
    seen = {start}
    waiting = [start]
    while waiting:
        for other, _ in network.reach[waiting.pop()]:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return {node for node in seen if node < network.size}
