"""A topology as the packing algorithms see it: arcs between ranks and what each one takes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

from blinkrun.errors import PlanError, UnreachableRankError
from blinkrun.planner.packing import Edge, Flow, Tree
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank

Column = tuple[int, ...]  # a spanning tree: its arcs, as ascending indices
MAX_RELAYS = 8  # the cheapest tree is looked for with every choice of relays


@dataclass(frozen=True, slots=True)
class Arc:
    """A possible tree edge; `use` counts how often it takes each resource, by index.

    `kinds` are those of the links, in the same order.
    """

    parent: Rank
    child: Rank
    links: tuple[int, ...]
    use: tuple[tuple[int, int], ...]
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    """Arcs for one flow.

    Attributes
    ----------
    flow : Flow
        With BOTH an arc may be walked either way, and is listed once, from the lower rank.
    size : int
        Number of ranks.
    capacities : tuple of int
        Of the topology's resources, in order.
    arcs : tuple of Arc
        Sorted by parent, child and links.
    num_relays : int
        Nodes ``size``, ``size + 1``, … that a tree may run through but need not reach.
    reach : tuple of tuple of (rank, arc)
        Per node the neighbours that a tree may grow to, by rank, the widest of parallel arcs first.
    """

    flow: Flow
    size: int
    capacities: tuple[int, ...]
    arcs: tuple[Arc, ...]
    num_relays: int = 0
    reach: tuple[tuple[tuple[Rank, int], ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        found: list[list[tuple[Rank, int]]] = [[] for _ in range(self.num_nodes)]
        for index, arc in enumerate(self.arcs):
            found[arc.parent].append((arc.child, index))
            if self.flow is Flow.BOTH:
                found[arc.child].append((arc.parent, index))
        for near in found:
            near.sort(key=lambda item: (item[0], -self._width(item[1]), item[1]))
        object.__setattr__(self, "reach", tuple(map(tuple, found)))

    def _width(self, index: int) -> float:
        return min(self.capacities[at] / times for at, times in self.arcs[index].use)

    @property
    def num_nodes(self) -> int:
        """Number of ranks and relays."""
        return self.size + self.num_relays

    @property
    def roots(self) -> tuple[Rank | None, ...]:
        """What trees there are to choose from where the caller names no root."""
        return tuple(range(self.size)) if self.flow.is_joint else (None,)

    @property
    def is_separate(self) -> bool:
        """Whether no two arcs share a resource."""
        takers = Counter(at for arc in self.arcs for at, _ in arc.use)
        return max(takers.values(), default=0) <= 1

    def use(self, column: Column) -> Counter[int]:
        """Return how often a tree takes each resource."""
        total: Counter[int] = Counter()
        for index in column:
            for at, times in self.arcs[index].use:
                total[at] += times
        return total

    def weights(self, prices: Sequence[int]) -> list[int]:
        """Return what each arc costs at these resource prices."""
        return [sum(prices[at] * times for at, times in arc.use) for arc in self.arcs]

    def parents(self, column: Column, root: Rank) -> tuple[int, ...]:
        """Return the parent of every node when the tree hangs from `root`; -1 where it has none."""
        near = self._near(column)
        parents = [-1] * self.num_nodes
        stack = [root]
        while stack:
            rank = stack.pop()
            for other in near[rank]:
                if other != parents[rank]:
                    parents[other] = rank
                    stack.append(other)
        return tuple(parents)

    def depth(self, column: Column, root: Rank) -> int:
        """Return the hops from `root` to the farthest rank."""
        return max(hops_from(self._near(column), root).values())

    def centre(self, column: Column) -> Rank:
        """Return the rank from which the tree is shallowest, the lowest of equals."""
        near = self._near(column)
        first = max(hops_from(near, self.arcs[column[0]].parent).items(), key=lambda item: item[1])
        # of a tree, the farthest node from any is one of the ends of a longest path
        one = hops_from(near, first[0])
        other = hops_from(near, max(one.items(), key=lambda item: item[1])[0])
        return min(range(self.size), key=lambda rank: (max(one[rank], other[rank]), rank))

    def _near(self, column: Column) -> list[list[Rank]]:
        near: list[list[Rank]] = [[] for _ in range(self.num_nodes)]
        for index in column:
            arc = self.arcs[index]
            near[arc.parent].append(arc.child)
            near[arc.child].append(arc.parent)
        return near

    def root_of(self, column: Column) -> Rank:
        """Return the root of an arborescence: the one rank that none of its arcs enters."""
        entered = {self.arcs[index].child for index in column}
        return next(rank for rank in range(self.size) if rank not in entered)

    def tree(self, column: Column, root: Rank) -> Tree:
        """Return the tree with its edges leading away from `root`."""
        parents = self.parents(column, root)
        edges = []
        for index in column:
            arc = self.arcs[index]
            down = parents[arc.child] == arc.parent
            ends = (arc.parent, arc.child) if down else (arc.child, arc.parent)
            edges.append(Edge(*ends, arc.links))
        return Tree(root, tuple(sorted(edges)))


def hops_from(near: Sequence[Sequence[Rank]], start: Rank) -> dict[Rank, int]:
    """Return how far every node of a tree is from `start`; `near` are everyone's neighbours."""
    hops = {start: 0}
    waiting = [start]
    for node in waiting:
        for other in near[node]:
            if other not in hops:
                hops[other] = hops[node] + 1
                waiting.append(other)
    return hops


def levels(parents: Sequence[int]) -> list[int]:
    """Return every rank's hops from the root.

    >>> levels((1, -1, 0))
    [1, 0, 2]
    """
    hops = []
    for rank in range(len(parents)):
        at, count = rank, 0
        while parents[at] >= 0:
            at, count = parents[at], count + 1
        hops.append(count)
    return hops


def network_of(topology: Topology, flow: Flow) -> Network:
    """Return the arcs of `topology` for `flow`; whether they join all ranks is not checked here.

    Raises
    ------
    PlanError
        If there are more relays than can all be tried.
    """
    if topology.num_relays > MAX_RELAYS:
        raise PlanError(
            f"{topology.num_relays} relays; trees are planned with {MAX_RELAYS} at most"
        )
    index_of = {resource.name: at for at, resource in enumerate(topology.resources)}
    between: dict[tuple[Rank, Rank], list[int]] = {}
    for index, link in enumerate(topology.links):
        between.setdefault((link.src, link.dst), []).append(index)
    arcs = []
    for parent, child in sorted(_pairs(between, flow)):
        ways = [between[way] for way in flow.directions(parent, child)]
        for links in product(*ways):
            use = Counter(
                index_of[name] for link in links for name in topology.links[link].resources
            )
            taken = tuple(sorted(links))
            kinds = tuple(topology.links[link].kind.value for link in taken)
            arcs.append(Arc(parent, child, taken, tuple(sorted(use.items())), kinds))
    capacities = tuple(resource.capacity for resource in topology.resources)
    return Network(flow, topology.size, capacities, tuple(arcs), topology.num_relays)


def _pairs(between: Iterable[tuple[Rank, Rank]], flow: Flow) -> set[tuple[Rank, Rank]]:
    """Return the (parent, child) pairs that links allow."""
    pairs = set(between)
    if flow in (Flow.DOWN, Flow.ALL_DOWN):
        return pairs
    if flow in (Flow.UP, Flow.ALL_UP):
        return {(dst, src) for src, dst in pairs}
    return {(src, dst) for src, dst in pairs if src < dst and (dst, src) in pairs}


def shallow_tree(network: Network, start: Rank, hub: Rank) -> Column:
    """Return the tree that runs from `start` to `hub` and fans out from there as fast as it can.

    With ``start == hub`` it is the breadth-first tree. Otherwise it is, on networks whose links
    go both ways, the breadth-first tree of `hub` hung up at `start`.

    Raises
    ------
    UnreachableRankError
        If a rank cannot be reached from `start`.
    """
    whole = _breadth_first(network, {start: -1}, start)
    for rank in range(network.size):
        if rank not in whole:
            raise UnreachableRankError(start, rank)
    trunk = {hub: whole[hub]}
    at = hub
    while whole[at] >= 0:
        arc = network.arcs[whole[at]]
        at = arc.parent if arc.child == at else arc.child
        trunk[at] = whole[at]
    tree = _breadth_first(network, trunk, hub)
    # what only the trunk leads to
    for rank in trunk:
        tree = _breadth_first(network, tree, rank)
    return pruned(network, (index for index in tree.values() if index >= 0))


def pruned(network: Network, arcs: Iterable[int]) -> Column:
    """Return the tree of `arcs` without the branches on which there are only relays."""
    column = set(arcs)
    if not network.num_relays:
        return tuple(sorted(column))
    while True:
        ends = Counter(
            end
            for index in column
            for end in (network.arcs[index].parent, network.arcs[index].child)
        )
        bare = {node for node, times in ends.items() if node >= network.size and times == 1}
        if not bare:
            return tuple(sorted(column))
        column = {
            index
            for index in column
            if network.arcs[index].parent not in bare and network.arcs[index].child not in bare
        }


def _breadth_first(network: Network, tree: dict[Rank, int], hub: Rank) -> dict[Rank, int]:
    """Return `tree` (arc into each rank, -1 for the root) grown from `hub` as far as it goes."""
    grown = dict(tree)
    seen = {hub}
    queue = deque([hub])
    while queue:
        rank = queue.popleft()
        for other, index in network.reach[rank]:
            if other not in seen:
                seen.add(other)
                grown.setdefault(other, index)
                queue.append(other)
    return grown
