"""The trees of one host among several, and which of its ranks speak with the other hosts.

Ranks that share memory, or sit behind one switch, all reach each other in one hop: there every rank
is the root of a star, with the same part of the data, so that all of them send and receive at once,
and every NIC has its part. Elsewhere few trees are taken, and the roots that they are given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise

from blinkrun.planner.packing import Edge, Flow, Packing, Tree, fastest_rate
from blinkrun.planner.solve import pack
from blinkrun.topology.between import Network
from blinkrun.topology.graph import LinkKind, Topology
from blinkrun.types import Rank

_SWITCHED = (LinkKind.SHM, LinkKind.NVSWITCH)  # any rank reaches any other, as fast


@dataclass(frozen=True, slots=True)
class LocalTree:
    """A tree of one host, in that host's ranks and links, and the part of the data it carries.

    `port` is the rank that exchanges it with other hosts: the root, but on the host of the root
    of all.
    """

    tree: Tree
    part: Fraction
    port: Rank = -1

    def __post_init__(self) -> None:
        if self.port < 0:
            object.__setattr__(self, "port", self.tree.root)


@dataclass(frozen=True, slots=True)
class LocalTrees:
    """The trees of one host; `rate` is what they carry together, None for a single rank."""

    trees: tuple[LocalTree, ...]
    rate: Fraction | None


def local_trees(
    host: Topology,
    flow: Flow,
    *,
    root: Rank | None = None,
    wanted: Fraction,
    network: Network | None = None,
) -> LocalTrees:
    """Return the trees of one host that carry a part each of all data.

    Stars round all ranks where these reach each other alike; else few trees, if these reach the
    `wanted` rate; else the fastest. For broadcast and reduce without a given root the latter have
    one root, that with the best rate.

    Parameters
    ----------
    host : Topology
        Of one or more ranks.
    flow : Flow
        Allreduce, broadcast or reduce.
    root : Rank, optional
        Among the host's ranks, for broadcast and reduce.
    wanted : Fraction
        What the network carries, in the host's unit: more is of no use.
    network : Network, optional
        Of the host: where the NICs of ranks are known, each gets the same part of the data.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> found = local_trees(machine("dgx-1v", "all"), Flow.BOTH, wanted=Fraction(50_000))
    >>> sum(each.part for each in found.trees), found.rate > 50_000
    (Fraction(1, 1), True)
    """
    if host.size == 1:
        return LocalTrees((LocalTree(Tree(0, ()), Fraction(1)),), None)
    parts = port_parts(host.size, network)
    stars = _stars(host, flow, root, parts)
    if stars is not None and stars.rate is not None and stars.rate >= wanted:
        return stars
    best = _packed(host, flow, root, wanted)
    if stars is not None and stars.rate is not None and stars.rate >= best.rate:
        return stars
    trees = tuple(
        LocalTree(tree, rate / best.rate) for tree, rate in zip(best.trees, best.rates, strict=True)
    )
    meets_others = flow is Flow.BOTH or root is not None  # elsewhere than at its trees' roots
    if network is not None and network.is_told_apart and meets_others:
        trees = _with_ports(trees, parts, keeps_root=flow is not Flow.BOTH)
    return LocalTrees(trees, best.rate)


def port_parts(size: int, network: Network | None) -> tuple[Fraction, ...]:
    """Return which part of the data each rank of a host exchanges with the others.

    The same, or, where it is known which rank takes which NIC, such that every NIC that has ranks
    carries the same.

    >>> [str(part) for part in port_parts(3, Network(100, nics=2, nic_of=(0, 0, 1)))]
    ['1/4', '1/4', '1/2']
    """
    if network is None or not network.is_told_apart:
        return (Fraction(1, size),) * size
    ranks = Counter(network.nic_of)
    return tuple(Fraction(1, len(ranks) * ranks[nic]) for nic in network.nic_of)


def star(host: Topology, flow: Flow, root: Rank) -> Tree | None:
    """Return the one-hop tree over switched links, None where these do not join all to `root`."""
    links = {
        (link.src, link.dst): at for at, link in enumerate(host.links) if link.kind in _SWITCHED
    }
    edges = []
    for child in range(host.size):
        if child != root:
            ways = flow.directions(root, child)
            if any(way not in links for way in ways):
                return None
            edges.append(Edge(root, child, tuple(sorted(links[way] for way in ways))))
    return Tree(root, tuple(edges))


def _stars(
    host: Topology, flow: Flow, root: Rank | None, parts: Sequence[Fraction]
) -> LocalTrees | None:
    """Return stars with a port at every rank: each its root, or all rooted at `root`."""
    roots = [port if root is None else root for port in range(host.size)]
    trees = [star(host, flow, each) for each in roots]
    found = tuple(
        LocalTree(tree, part, port)
        for port, (tree, part) in enumerate(zip(trees, parts, strict=True))
        if tree is not None
    )
    if len(found) < host.size:
        return None
    # which way data runs decides the load; whether all trees have one root does not
    joint = {Flow.DOWN: Flow.ALL_DOWN, Flow.UP: Flow.ALL_UP}.get(flow, flow)
    packing = Packing(joint, None, tuple(each.tree for each in found), tuple(parts))
    return LocalTrees(found, fastest_rate(host, packing))


def _packed(host: Topology, flow: Flow, root: Rank | None, wanted: Fraction) -> Packing:
    roots = [root] if root is not None or flow is Flow.BOTH else list(range(host.size))
    found: list[Packing] = []
    for each in roots:
        found.append(pack(host, flow, each)[0])
        if found[-1].rate >= wanted:
            break
    best = max(found, key=lambda packing: packing.rate)  # the first of equals
    if best.rate < wanted:
        best, _ = pack(host, flow, best.root, loss=Fraction(0))
    return best


def _with_ports(
    trees: Sequence[LocalTree], parts: Sequence[Fraction], *, keeps_root: bool
) -> tuple[LocalTree, ...]:
    """Return the trees cut so that every rank has its part of the data to exchange.

    Trees of allreduce are hung up at the rank that exchanges it: they take both directions of
    their edges, wherever the root is.
    """
    ends = [list(accumulate(each.part for each in trees)), list(accumulate(parts))]
    cuts = sorted({Fraction(0), *ends[0], *ends[1]})
    found = []
    for low, high in pairwise(cuts):
        each, port = (sum(end <= low for end in side) for side in ends)
        tree = trees[each].tree if keeps_root else _hung_up(trees[each].tree, port)
        found.append(LocalTree(tree, high - low, port))
    return tuple(found)


def _hung_up(tree: Tree, root: Rank) -> Tree:
    """Return the same tree with another root.

    >>> _hung_up(Tree(0, (Edge(0, 1, (2,)), Edge(1, 2, (5,)))), 2).edges
    (Edge(parent=1, child=0, links=(2,)), Edge(parent=2, child=1, links=(5,)))
    """
    turned = tree.edges
    parent_of = {edge.child: edge for edge in tree.edges}
    at = root
    while at != tree.root:
        edge = parent_of[at]
        other = replace(edge, parent=edge.child, child=edge.parent)
        turned = tuple(other if each is edge else each for each in turned)
        at = edge.parent
    return Tree(root, tuple(sorted(turned)))
