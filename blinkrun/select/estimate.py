"""How long a collective takes over given trees, by a formula: quick, within some ten per cent.

It says where to look; the simulator says what is true. A channel carries its part through its tree
in chunks. A chunk takes, on every hop, the step, the bytes and the latency; the next one follows
when the channel's slowest hop is free again, or when all channels of the tree together have moved
a chunk at the rate that the packing gives the tree, whichever is later:

    time = launch + hops of the longest way + (chunks - 1) * the longer of the two
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.schedule.chunking import ALIGN_BYTES
from blinkrun.schedule.routes import Routes
from blinkrun.simulator.cost import Cost
from blinkrun.topology.graph import LinkKind, Topology
from blinkrun.types import Rank


@dataclass(frozen=True, slots=True)
class Hop:
    """A step of a tree over a link.

    Attributes
    ----------
    child : Rank
        At the far end from the root.
    overhead_ns : int
        The step and the latency of its link.
    resources : tuple of str
    mb_per_s : int
        What the link carries.
    """

    child: Rank
    overhead_ns: int
    resources: tuple[str, ...]
    mb_per_s: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A tree as the formula sees it.

    Attributes
    ----------
    part : Fraction
        Of the collective's bytes.
    mb_per_s : int
        What the packing gives it.
    longest : tuple of (int, int)
        The hops of the longest way: overhead in ns, and MB/s while others use the link too.
    slowest : tuple of (int, int)
        The same of the narrowest hop, alone on its link.
    """

    part: Fraction
    mb_per_s: int
    longest: tuple[tuple[int, int], ...]
    slowest: tuple[int, int]

    def fill_ns(self, chunk_bytes: int, channels: int) -> int:
        """Return how long a chunk of each channel takes to the end of the longest way."""
        return sum(ns + chunk_bytes * channels * 1000 // width for ns, width in self.longest)


class Estimate:
    """The formula for one packing.

    Parameters
    ----------
    topology : Topology
        In MB/s.
    packing : PlannedPacking
    cost : Cost
    """

    def __init__(self, topology: Topology, packing: PlannedPacking, cost: Cost) -> None:
        self.cost = cost
        self.rate = packing.rate * cost.efficiency
        self.min_hops_ns = 0
        ways = _Ways(topology, cost)
        hops = [list(ways.hops(tree)) for tree in packing.trees]
        crowd = Counter(name for tree in hops for _, hop in tree for name in hop.resources)
        roots = packing.size if packing.joint else 1
        self.branches = []
        for tree, own in zip(packing.trees, hops, strict=True):
            part = Fraction(tree.stop - tree.start, packing.shares * roots)
            self.branches.append(_branch(tree, part, own, crowd, self.rate))
        self.min_hops_ns = max(sum(hop for hop, _ in b.longest) for b in self.branches)

    def least_ns(self, size_bytes: int) -> int:
        """Return a time that no chunks and no channels can beat."""
        return self.cost.launch_ns + max(self.min_hops_ns, int(size_bytes * 1000 / self.rate))

    def time_ns(self, size_bytes: int, *, chunk_bytes: int, channels_per_tree: int) -> int:
        """Return the estimated time."""
        times = [
            self._branch_ns(branch, size_bytes, chunk_bytes, channels_per_tree)
            for branch in self.branches
        ]
        return self.cost.launch_ns + max(*times, int(size_bytes * 1000 / self.rate))

    def _branch_ns(self, branch: Branch, size_bytes: int, chunk_bytes: int, channels: int) -> int:
        part_bytes = max(1, int(size_bytes * branch.part) // channels)
        chunk = min(chunk_bytes or part_bytes, part_bytes)
        num_chunks = -(-part_bytes // chunk)
        overhead, mb_per_s = branch.slowest
        alone = overhead + chunk * 1000 // mb_per_s
        together = channels * chunk * 1000 // branch.mb_per_s
        return branch.fill_ns(chunk, channels) + (num_chunks - 1) * max(alone, together)

    def delays_ns(self, chunk_bytes: int, channels_per_tree: int) -> list[int]:
        """Return what the chunks of every tree need for its longest way."""
        return [branch.fill_ns(chunk_bytes, channels_per_tree) for branch in self.branches]

    def start(self, size_bytes: int, channels_per_tree: int) -> tuple[int, int]:
        """Return the chunk size with the least estimate, and that time.

        Of powers of two times a cache line; the largest of those within a 200th, since fewer
        chunks are fewer steps.
        """
        largest = max(branch.part for branch in self.branches)
        part_bytes = max(1, int(size_bytes * largest) // channels_per_tree)
        ladder = [ALIGN_BYTES]
        while ladder[-1] < part_bytes:
            ladder.append(2 * ladder[-1])
        times = {
            chunk: self.time_ns(size_bytes, chunk_bytes=chunk, channels_per_tree=channels_per_tree)
            for chunk in ladder
        }
        least = min(times.values())
        chunk = max(chunk for chunk, time in times.items() if time * 200 <= least * 201)
        return chunk, times[chunk]


class _Ways:
    """Which links the edges of trees take."""

    def __init__(self, topology: Topology, cost: Cost) -> None:
        self.routes = Routes(topology)
        self.cost = cost
        self.capacity = {
            resource.name: max(1, int(resource.capacity * cost.efficiency))
            for resource in topology.resources
        }

    def hops(self, tree: PlannedTree) -> Iterator[tuple[bool, Hop]]:
        """Yield every hop, with whether it leads up to the root."""
        for child, parent in enumerate(tree.parents):
            if parent < 0:
                continue
            if tree.up[child]:
                yield True, self._hop(child, child, parent, tree.up[child])
            if tree.down[child]:
                yield False, self._hop(child, parent, child, tree.down[child])

    def _hop(self, child: Rank, src: Rank, dst: Rank, kind: str) -> Hop:
        link = self.routes.topology.links[self.routes.link(src, dst, kind)]
        overhead = self.cost.step_ns + self.cost.latency_ns(LinkKind(kind))
        width = min(self.capacity[name] for name in link.resources)
        return Hop(child, overhead, link.resources, width)


def _branch(
    tree: PlannedTree,
    part: Fraction,
    hops: list[tuple[bool, Hop]],
    crowd: Counter[str],
    rate: Fraction,
) -> Branch:
    """Return the tree with its longest way: up, and then down."""
    up = _longest(tree, {hop.child: hop for is_up, hop in hops if is_up})
    down = _longest(tree, {hop.child: hop for is_up, hop in hops if not is_up})
    # the step at the root takes from its children and hands down to them in one
    way = [*up[:-1], *down] if down else up
    slowest = min((hop for _, hop in hops), key=lambda hop: (hop.mb_per_s, -hop.overhead_ns))

    granted = max(1, int(rate * part))

    def shared(hop: Hop) -> int:
        sharing = max(crowd[name] for name in hop.resources)
        return max(hop.mb_per_s // sharing, min(granted, hop.mb_per_s), 1)

    longest = tuple((hop.overhead_ns, shared(hop)) for hop in way)
    return Branch(part, granted, longest, (slowest.overhead_ns, slowest.mb_per_s))


def _longest(tree: PlannedTree, hop_of: dict[Rank, Hop]) -> list[Hop]:
    """Return the hops with the most overhead between the root and a rank, the farthest first."""
    if not hop_of:
        return []
    ways = []
    for rank in range(len(tree.parents)):
        way = []
        at = rank
        while at != tree.root:
            way.append(hop_of[at])
            at = tree.parents[at]
        ways.append(way)
    return max(ways, key=lambda way: sum(hop.overhead_ns for hop in way))
