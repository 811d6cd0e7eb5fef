"""How long a collective takes by size, and which trees are best for it.

A tree passes data on in chunks, so a collective takes the latency of the hops on its longest way
and the time that all bytes need at the packing's rate. Large data wants the packing with the best
rate, small data few hops. What is left out: starting a kernel, and the time that one chunk takes
on each hop; both are the same for all that is compared, or nearly so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from heapq import heappop, heappush

from blinkrun.errors import UsageError
from blinkrun.planner.network import Column, Network, network_of, pruned
from blinkrun.planner.onehop import onehop_packing
from blinkrun.planner.packing import Edge, Flow, Packing, Tree, fastest_rate
from blinkrun.planner.rings import RingPeer, ring_steps
from blinkrun.topology.graph import LinkKind, Topology
from blinkrun.types import Rank

LatencyNs = Callable[[LinkKind], int]  # of one hop
SIZES = tuple(10**power for power in range(3, 10))  # 1 KB to 1 GB
_SMALL = (0, 10**4, 10**6)  # bytes for which single trees are looked for


@dataclass(frozen=True, slots=True)
class Timing:
    """What times are predicted from.

    Attributes
    ----------
    topology : Topology
    latency_ns : callable
        Latency of a hop by the kind of its link, in ns.
    unit_mb_per_s : int, default 1
        What one unit of the topology is in MB/s: the width of a lane where it counts lanes.

    Raises
    ------
    UsageError
        If `unit_mb_per_s` is less than 1.
    """

    topology: Topology
    latency_ns: LatencyNs
    unit_mb_per_s: int = 1

    def __post_init__(self) -> None:
        if self.unit_mb_per_s < 1:
            raise UsageError(
                f"{self.topology.name}: no times are predicted from {self.unit_mb_per_s} MB/s "
                f"per {self.topology.unit}"
            )

    def hop_ns(self, link: int) -> int:
        """Return the latency of a link, by its index."""
        return self.latency_ns(self.topology.links[link].kind)

    def transfer_ns(self, size_bytes: int, rate: Fraction) -> int:
        """Return the time of so many bytes at a rate, rounded up; MB/s are bytes per 1000 ns."""
        return -int(-(size_bytes * 1000) // (rate * self.unit_mb_per_s))


class Trees(StrEnum):
    """Which trees carry the data."""

    PACKED = "packed"  # those of the plan
    ONEHOP = "one-hop"  # a star round every rank
    SHALLOW = "shallow"  # a single tree (or one per root) with the least latency


@dataclass(frozen=True, slots=True)
class Candidate:
    """Trees to choose, with what their time is made of.

    Attributes
    ----------
    trees : Trees
    packing : Packing
    latency_ns : int
        Of the hops on the longest way.
    """

    trees: Trees
    packing: Packing
    latency_ns: int

    def time_ns(self, timing: Timing, size_bytes: int) -> int:
        """Return the predicted time for so many bytes, in whole ns."""
        return self.latency_ns + timing.transfer_ns(size_bytes, self.packing.rate)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A row of the table: the best trees for a size, and the ring library beside them.

    Attributes
    ----------
    size_bytes : int
    trees : Trees
        The choice with the least time.
    time_ns : int
    ring_ns : int or None
        None where there is no ring.
    """

    size_bytes: int
    trees: Trees
    time_ns: int
    ring_ns: int | None

    @property
    def algbw_gb_per_s(self) -> Fraction:
        """Bytes of the collective per ns, which is GB/s."""
        return Fraction(self.size_bytes, max(1, self.time_ns))


def candidates(timing: Timing, packing: Packing) -> tuple[Candidate, ...]:
    """Return the trees that are worth a choice; those of the plan, `packing`, come first."""
    flow, root = packing.flow, packing.root
    found = [(Trees.PACKED, packing)]
    with suppress(UsageError):  # some ranks are not linked
        found.append((Trees.ONEHOP, onehop_packing(timing.topology, flow, root)))
    found += [(Trees.SHALLOW, choice) for choice in _shallow(timing, flow, root)]
    return tuple(
        Candidate(trees, choice, max(_latency_ns(timing, flow, tree) for tree in choice.trees))
        for trees, choice in found
    )


def choose(timing: Timing, options: Sequence[Candidate], size_bytes: int) -> Candidate:
    """Return the candidate with the least time for a size, the first of equals."""
    return min(options, key=lambda option: option.time_ns(timing, size_bytes))


def ring_ns(timing: Timing, flow: Flow, peer: RingPeer, size_bytes: int) -> int | None:
    """Return the predicted time of a ring library, None where there is no ring.

    All ranks take each step together, so every step lasts as long as the slowest hop.
    """
    if not peer.rings:
        return None
    hop = max(timing.hop_ns(link) for ring in peer.rings for link in ring.links)
    steps = ring_steps(flow, timing.topology.size)
    return steps * hop + timing.transfer_ns(size_bytes, peer.rate)


def predict(
    timing: Timing, packing: Packing, peer: RingPeer, *, sizes: Sequence[int] = SIZES
) -> tuple[Prediction, ...]:
    """Return the table of predicted times, one row per size.

    Parameters
    ----------
    timing : Timing
    packing : Packing
        The plan's, on the topology of `timing`.
    peer : RingPeer
        What a ring library gets, in that topology's unit.
    sizes : sequence of int, default 1 KB to 1 GB
        Bytes of the collective, as nccl-tests counts them.

    Examples
    --------
    >>> from blinkrun.planner.rings import ring_peer
    >>> from blinkrun.planner.solve import pack
    >>> from blinkrun.topology.catalog import machine
    >>> dgx1 = machine("dgx-1p", "all")
    >>> packing, _ = pack(dgx1, Flow.BOTH)
    >>> timing = Timing(dgx1, latency_ns=lambda kind: 600 if kind.is_fabric else 2000)
    >>> rows = predict(timing, packing, ring_peer(dgx1, Flow.BOTH), sizes=(1000, 10**9))
    >>> [(row.size_bytes, row.trees.value, row.time_ns < row.ring_ns) for row in rows]
    [(1000, 'shallow', True), (1000000000, 'packed', True)]
    """
    options = candidates(timing, packing)
    rows = []
    for size in sizes:
        best = choose(timing, options, size)
        beside = ring_ns(timing, packing.flow, peer, size)
        rows.append(Prediction(size, best.trees, best.time_ns(timing, size), beside))
    return tuple(rows)


def _latency_ns(timing: Timing, flow: Flow, tree: Tree) -> int:
    """Return the latency of the longest way: to the root, from it, or one after the other."""
    total = 0
    # a flow that goes one way has no links for the other, and no latency
    for is_up in (True, False):
        reached = {tree.root: 0}
        waiting = list(tree.edges)
        while waiting:
            for edge in waiting:
                if edge.parent in reached:
                    hop = _edge_ns(timing, edge, is_up=is_up)
                    reached[edge.child] = reached[edge.parent] + hop
            waiting = [edge for edge in waiting if edge.child not in reached]
        total += max(reached.values())
    return total


def _edge_ns(timing: Timing, edge: Edge, *, is_up: bool) -> int:
    src = edge.child if is_up else edge.parent
    return sum(timing.hop_ns(link) for link in edge.links if timing.topology.links[link].src == src)


def _shallow(timing: Timing, flow: Flow, root: Rank | None) -> list[Packing]:
    """Return single trees that are quick for some small size; a tree per root if joint."""
    network = network_of(timing.topology, flow)
    hubs = range(network.size) if root is None else (root,)
    found = []
    for size in _SMALL:
        cost = _costs_ns(timing, network, size)
        trees = [network.tree(_quickest(network, hub, cost), hub) for hub in hubs]
        if flow.is_joint:
            found.append(_fitted(timing.topology, flow, root, trees))
            continue
        options = [_fitted(timing.topology, flow, root, [tree]) for tree in trees]
        found.append(
            min(options, key=lambda one: (_latency_ns(timing, flow, one.trees[0]), -one.rate))
        )
    return list(dict.fromkeys(found))


def _costs_ns(timing: Timing, network: Network, size_bytes: int) -> list[int]:
    """Return how long so many bytes take over each arc alone."""
    costs = []
    for arc in network.arcs:
        width = min(Fraction(network.capacities[at], times) for at, times in arc.use)
        hop = sum(timing.hop_ns(link) for link in arc.links)
        costs.append(hop + timing.transfer_ns(size_bytes, width))
    return costs


def _quickest(network: Network, hub: Rank, cost: Sequence[int]) -> Column:
    """Return the paths from `hub` of least cost, then of fewest hops (Dijkstra, 1959)."""
    arc_into: dict[Rank, int] = {}
    queue = [(0, 0, hub, -1)]
    while queue:
        total, hops, rank, came = heappop(queue)
        if rank in arc_into:
            continue
        arc_into[rank] = came
        for other, index in network.reach[rank]:
            heappush(queue, (total + cost[index], hops + 1, other, index))
    return pruned(network, (index for index in arc_into.values() if index >= 0))


def _fitted(topology: Topology, flow: Flow, root: Rank | None, trees: Sequence[Tree]) -> Packing:
    """Return the trees at equal rates, as fast as they fit."""
    equal = Packing(flow, root, tuple(trees), (Fraction(1),) * len(trees))
    rate = fastest_rate(topology, equal) / len(trees)
    return Packing(flow, root, tuple(trees), (rate,) * len(trees))
