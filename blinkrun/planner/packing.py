"""Packings: spanning trees with rates, and the exact check that they fit a topology."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from blinkrun.errors import PlanError
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank


class Flow(StrEnum):
    """Which way data runs along a tree, and so which links an edge takes."""

    BOTH = "allreduce"  # up to the root and down again: both directions of every edge
    DOWN = "broadcast"  # from the root: links parent -> child
    UP = "reduce"  # to the root: links child -> parent
    ALL_DOWN = "allgather"  # broadcasts from all roots at once, all at the same rate
    ALL_UP = "reducescatter"  # reductions to all roots at once, all at the same rate

    @property
    def is_rooted(self) -> bool:
        """Whether all trees have the one root that the caller names."""
        return self in (Flow.DOWN, Flow.UP)

    @property
    def is_joint(self) -> bool:
        """Whether every rank is the root of trees of its own, with the same total rate."""
        return self in (Flow.ALL_DOWN, Flow.ALL_UP)

    def directions(self, parent: Rank, child: Rank) -> tuple[tuple[Rank, Rank], ...]:
        """Return the (src, dst) of every link that an edge takes, sorted."""
        down, up = (parent, child), (child, parent)
        if self is Flow.BOTH:
            return (min(down, up), max(down, up))
        return (down,) if self in (Flow.DOWN, Flow.ALL_DOWN) else (up,)


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """A tree edge and the links that it takes, as ascending indices into ``Topology.links``."""

    parent: Rank
    child: Rank
    links: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """A rooted tree over all ranks; `edges` lead away from the root, sorted.

    Relays may stand between ranks, never at an end.
    """

    root: Rank
    edges: tuple[Edge, ...]

    def parents(self, size: int) -> tuple[int, ...]:
        """Return the parent of each of the first `size` nodes, -1 for the root.

        Where relays are not in every tree, theirs is -1 as well.

        >>> Tree(1, (Edge(0, 2, (5,)), Edge(1, 0, (2,)))).parents(3)
        (1, -1, 0)
        """
        parent_of = {edge.child: edge.parent for edge in self.edges}
        return tuple(parent_of.get(rank, -1) for rank in range(size))


@dataclass(frozen=True, slots=True)
class Packing:
    """Trees and the rate of each, in the topology's unit.

    Attributes
    ----------
    flow : Flow
        What the trees are for.
    root : Rank or None
        The root of every tree (broadcast, reduce); None where each tree has its own.
    trees : tuple of Tree
        Of allgather and reducescatter: every rank is a root, all with the same total rate.
    rates : tuple of Fraction
        One per tree, positive.
    """

    flow: Flow
    root: Rank | None
    trees: tuple[Tree, ...]
    rates: tuple[Fraction, ...]

    @property
    def rate(self) -> Fraction:
        """Sum of the trees' rates, over all roots."""
        return sum(self.rates, Fraction(0))

    def rates_by_root(self) -> dict[Rank, Fraction]:
        """Return the total rate of every root that trees have."""
        totals: dict[Rank, Fraction] = {}
        for tree, rate in zip(self.trees, self.rates, strict=True):
            totals[tree.root] = totals.get(tree.root, Fraction(0)) + rate
        return totals


def check_packing(topology: Topology, packing: Packing) -> None:
    """Raise PlanError unless `packing` can be carried out on `topology`; exact, no tolerance.

    Checked are: one positive rate per tree; every tree spans all ranks from its root, which is a
    rank, and has relays only between ranks; its links exist and run the right way; on no resource
    do the rates of the trees that take it, counted as often as they take it, exceed the capacity;
    where all ranks are roots, they have equal rates.
    """
    if len(packing.trees) != len(packing.rates):
        raise PlanError(f"{len(packing.trees)} trees have {len(packing.rates)} rates")
    if (packing.root is None) is packing.flow.is_rooted:
        raise PlanError(f"{packing.flow} packing has root {packing.root}")
    for number, (tree, rate) in enumerate(zip(packing.trees, packing.rates, strict=True)):
        where = f"{packing.flow} tree {number} at root {tree.root}"
        if rate <= 0:
            raise PlanError(f"{where}: rate {rate} is not positive")
        if packing.root not in (None, tree.root):
            raise PlanError(f"{where}: the packing's root is {packing.root}")
        _check_spanning(topology, tree, where)
        for edge in tree.edges:
            _check_links(topology, packing.flow, edge, where)
    if packing.flow.is_joint:
        _check_roots(topology, packing)
    loads = resource_loads(topology, packing)
    for resource in topology.resources:
        load = loads.get(resource.name, Fraction(0))
        if load > resource.capacity:
            raise PlanError(
                f"{packing.flow}: '{resource.name}' carries {load} "
                f"{topology.unit}, its capacity is {resource.capacity}"
            )


def resource_loads(topology: Topology, packing: Packing) -> dict[str, Fraction]:
    """Return what the trees together put on each resource that they take."""
    loads: dict[str, Fraction] = {}
    for tree, rate in zip(packing.trees, packing.rates, strict=True):
        takes = Counter(
            name
            for edge in tree.edges
            for index in edge.links
            for name in topology.links[index].resources
        )
        for name, times in takes.items():
            loads[name] = loads.get(name, Fraction(0)) + rate * times
    return loads


def fastest_rate(topology: Topology, packing: Packing) -> Fraction:
    """Return the total rate when all rates grow or shrink together until a resource is full."""
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    loads = resource_loads(topology, packing)
    return packing.rate * min(capacity[name] / load for name, load in loads.items())


def _check_spanning(topology: Topology, tree: Tree, where: str) -> None:
    if not 0 <= tree.root < topology.size:
        raise PlanError(f"{where}: there are {topology.size} ranks")
    reached = {tree.root}
    waiting = list(tree.edges)
    while waiting:
        grown = [edge for edge in waiting if edge.parent in reached]
        if not grown:
            raise PlanError(f"{where}: edge {waiting[0].parent}->{waiting[0].child} hangs loose")
        for edge in grown:
            if edge.child in reached:
                raise PlanError(f"{where}: rank {edge.child} has two parents")
            reached.add(edge.child)
        waiting = [edge for edge in waiting if edge not in grown]
    missing = set(range(topology.size)) - reached
    if missing:
        raise PlanError(
            f"{where}: {len(tree.edges)} edges, {topology.size} ranks: "
            f"rank {min(missing)} is not reached"
        )
    inner = {edge.parent for edge in tree.edges}
    for node in sorted(reached):
        if node >= topology.size and node not in inner:
            raise PlanError(f"{where}: relay {node} leads nowhere")


def _check_roots(topology: Topology, packing: Packing) -> None:
    totals = packing.rates_by_root()
    for rank in range(topology.size):
        if rank not in totals:
            raise PlanError(f"{packing.flow}: no tree has rank {rank} for its root")
        if totals[rank] != totals[0]:
            raise PlanError(
                f"{packing.flow}: the trees at root {rank} have rate {totals[rank]} "
                f"{topology.unit}, those at root 0 {totals[0]}"
            )


def _check_links(topology: Topology, flow: Flow, edge: Edge, where: str) -> None:
    for index in edge.links:
        if not 0 <= index < len(topology.links):
            raise PlanError(f"{where}: there is no link {index}")
    found = sorted((topology.links[index].src, topology.links[index].dst) for index in edge.links)
    if found != list(flow.directions(edge.parent, edge.child)):
        raise PlanError(f"{where}: edge {edge.parent}->{edge.child} takes links {found}")
