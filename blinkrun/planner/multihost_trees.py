"""From the trees of every host to trees over all ranks: local trees below, the network between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

from blinkrun.errors import PlanError
from blinkrun.planner.multihost_bound import own_link
from blinkrun.planner.multihost_local import LocalTree, LocalTrees
from blinkrun.planner.multihost_ways import Way
from blinkrun.planner.packing import Edge, Flow, Tree
from blinkrun.topology.graph import Link, LinkKind, Topology
from blinkrun.topology.hosts import ranks_by_host
from blinkrun.types import Rank


class Joiner:
    """Joins local trees; the ranks and links of the joined topology are looked up once.

    Parameters
    ----------
    hosts : sequence of Topology
        As they were given to `join_hosts`.
    joined : Topology
        What it made of them.
    """

    def __init__(self, hosts: Sequence[Topology], joined: Topology) -> None:
        self.hosts = hosts
        self.joined = joined
        self.first = [ranks[0] for ranks in ranks_by_host(joined)]
        self._index = {link: at for at, link in enumerate(joined.links)}
        self._between = {
            (link.src, link.dst): at
            for at, link in enumerate(joined.links)
            if link.kind is LinkKind.NETWORK
        }

    def trees(
        self, flow: Flow, root: Rank | None, local: Sequence[LocalTrees], ways: Sequence[Way]
    ) -> Iterator[tuple[Tree, Fraction]]:
        """Yield the trees over all ranks, and the part of the data that each carries.

        They come in the order of the partitions, and of the ways for each.

        Parameters
        ----------
        flow : Flow
            Which way data runs.
        root : Rank or None
            Of all trees, among all ranks; None: the port of the host that a way has on top.
        local : sequence of LocalTrees
            Of every host.
        ways : sequence of Way
        """
        renamed = [
            [self._renamed(each, number) for each in own.trees] for number, own in enumerate(local)
        ]
        for part, chosen in partitions(local):
            below = [renamed[number][at] for number, at in enumerate(chosen)]
            inside = [edge for tree, _ in below for edge in tree.edges]
            for share, way in ways:
                between = [self._across(flow, below[up][1], below[down][1]) for up, down in way]
                top = below[way[0][0]][1] if root is None else root
                yield Tree(top, tuple(sorted((*inside, *between)))), part * share

    def _across(self, flow: Flow, parent: Rank, child: Rank) -> Edge:
        links = (self._between[ends] for ends in flow.directions(parent, child))
        return Edge(parent, child, tuple(sorted(links)))

    def _renamed(self, local: LocalTree, number: int) -> tuple[Tree, Rank]:
        """Return a host's tree and port in the ranks and links of the joined topology."""
        first, host = self.first[number], self.hosts[number]
        edges = tuple(
            Edge(first + edge.parent, first + edge.child, _links(edge, host, number, first, index))
            for index in (self._index,)
            for edge in local.tree.edges
        )
        return Tree(first + local.tree.root, edges), first + local.port


def _links(
    edge: Edge, host: Topology, number: int, first: Rank, index: Mapping[Link, int]
) -> tuple[int, ...]:
    found = [index.get(own_link(host.links[at], number, first)) for at in edge.links]
    taken = tuple(sorted(at for at in found if at is not None))
    if len(taken) < len(found):
        raise PlanError(f"host {number} ({host.name}) has links that the joined topology lacks")
    return taken


def partitions(local: Sequence[LocalTrees]) -> Iterator[tuple[Fraction, tuple[int, ...]]]:
    """Yield the common refinement of the hosts' shares: a part, and which tree each host takes.

    >>> half, third = (
    ...     LocalTrees((LocalTree(Tree(0, ()), part), LocalTree(Tree(1, ()), 1 - part)), None)
    ...     for part in (Fraction(1, 2), Fraction(1, 3))
    ... )
    >>> [(str(part), trees) for part, trees in partitions([half, third])]
    [('1/3', (0, 0)), ('1/6', (0, 1)), ('1/2', (1, 1))]
    """
    ends = [list(accumulate(each.part for each in own.trees)) for own in local]
    cuts = sorted({Fraction(0), *(end for own in ends for end in own)})
    for low, high in pairwise(cuts):
        yield high - low, tuple(sum(end <= low for end in own) for own in ends)
