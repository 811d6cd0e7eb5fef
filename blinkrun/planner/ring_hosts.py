"""The order of one ring over several hosts: through every host on a path, from host to host.

A ring that crosses between two hosts as seldom as it can enters and leaves each host once. Inside
it follows NVLink if a path of NVLinks visits all ranks, as ring libraries look for it first; else
the widest ring over all links there is, without its narrowest hop.
"""

from __future__ import annotations

from collections.abc import Sequence

from blinkrun.planner.cycles import Order
from blinkrun.planner.ring_order import Hops, best_ring
from blinkrun.types import Rank


def order_over_hosts(hops: Hops, hosts: Sequence[Sequence[Rank]]) -> Order:
    """Return an order of all ranks, host by host; empty if a host's links join them on no path.

    Parameters
    ----------
    hops : Hops
        The link that is taken from one rank to another; NVLink where there is one.
    hosts : sequence of sequence of Rank
        The ranks of each host, in ascending order.
    """
    paths = [_fabric_path(hops, ranks) or _wide_path(hops, ranks) for ranks in hosts]
    return tuple(rank for path in paths for rank in path) if all(paths) else ()


def _fabric_path(hops: Hops, ranks: Sequence[Rank]) -> Order:
    """Return a path of NVLinks (or xGMI) over these ranks, the first by rank; empty if none."""
    near = {
        rank: [
            other
            for other in ranks
            if (rank, other) in hops.links and hops.links[rank, other].kind.is_fabric
        ]
        for rank in ranks
    }
    stack: list[Order] = [(rank,) for rank in reversed(ranks)]
    while stack:
        path = stack.pop()
        if len(path) == len(ranks):
            return path
        onward = [rank for rank in near[path[-1]] if rank not in path]
        stack += [(*path, rank) for rank in reversed(onward)]
    return ()


def _wide_path(hops: Hops, ranks: Sequence[Rank]) -> Order:
    """Return the widest ring over these ranks, cut open where that leaves the widest path."""
    at = {rank: number for number, rank in enumerate(ranks)}
    links = {
        (at[src], at[dst]): link
        for (src, dst), link in hops.links.items()
        if src in at and dst in at
    }
    own = Hops(len(ranks), links, hops.capacity)
    order, _, _ = best_ring(own)
    if not order:
        return ()
    turned = [(*order[start:], *order[:start]) for start in range(len(order))]
    widest = max(turned, key=own.path_width)  # the first of equals
    return tuple(ranks[number] for number in widest)
