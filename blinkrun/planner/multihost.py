"""Trees over several hosts: packed trees inside each host, joined by the network at their roots.

Blink's three phases [1]_: the data is cut into partitions; each is reduced inside every host over
one of its packed trees to that tree's root, summed between the hosts' roots, and brought back.
Here a partition is one spanning tree of all ranks: the local tree of a *root host*, one network
hop from its root to the root of every other host's local tree, and those trees below. Its phases
so overlap chunk by chunk, and it is lowered, verified and timed like any other tree.

Partitions are the common refinement of the hosts' shares, so hosts may have different numbers of
ranks, trees and rates. Each is cut into one equal part per root host: then every NIC carries the
same, 2 (H - 1) / H of the data each way, which is the least for H hosts that do the same.

For broadcast every other host receives its 1 / (H - 1) of the data from the root and passes it on
to the rest; reduce is that backwards. So the root's NIC sends the data once.

The rate is exact and proven against a bound: by the network alone, or, where a host's own links
are slower, by that host with all others drawn together to one. Where hosts are few and small and
trees that leave a host and come back are faster by more than a twentieth, the trees of the joint
optimum are taken instead.

References
----------
.. [1] G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020,
   section 3.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise

from blinkrun.errors import PlanError
from blinkrun.planner.certificate import check_certificate
from blinkrun.planner.make import in_shares
from blinkrun.planner.multihost_bound import local_root, network_bound, outside_bounds, own_link
from blinkrun.planner.packing import Edge, Flow, Packing, Tree, fastest_rate
from blinkrun.planner.plan import PlannedPacking
from blinkrun.planner.solve import DEFAULT_LOSS, pack
from blinkrun.topology.graph import Link, LinkKind, Topology
from blinkrun.topology.hosts import ranks_by_host
from blinkrun.types import Rank

FLOWS = (Flow.BOTH, Flow.DOWN, Flow.UP)
_JOINT_RANKS = 12  # up to which the joint optimum takes well under a second


@dataclass(frozen=True, slots=True)
class LocalTree:
    """A tree of one host, in that host's ranks and links, and the part of the data it carries."""

    tree: Tree
    part: Fraction


@dataclass(frozen=True, slots=True)
class LocalTrees:
    """The trees of one host; `rate` is what they carry together, None for a single rank."""

    trees: tuple[LocalTree, ...]
    rate: Fraction | None


def plan_hosts(
    hosts: Sequence[Topology], joined: Topology, flow: Flow, root: Rank | None = None
) -> PlannedPacking:
    """Return trees over all ranks of several hosts.

    Parameters
    ----------
    hosts : sequence of Topology
        As they were given to `join_hosts`; each joins its own ranks.
    joined : Topology
        What `join_hosts` made of them.
    flow : Flow
        Allreduce (BOTH), broadcast (DOWN) or reduce (UP).
    root : Rank, optional
        Of broadcast and reduce, among the ranks of `joined`.

    Returns
    -------
    PlannedPacking
        For `lower_packing`. Trees are in the order of the partitions, and of the root hosts for
        each. For equal hosts the trees of a partition are images of each other under a rotation of
        the hosts.

    Raises
    ------
    PlanError
        If `joined` is of other hosts, or flow and root do not go together.
    UnreachableRankError
        If a host's links do not join its ranks.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> from blinkrun.topology.hosts import join_hosts
    >>> dgx1 = machine("dgx-1v", "all")
    >>> hosts = [induce(dgx1, [0, 1, 2]), induce(dgx1, [3, 4, 5, 6, 7])]
    >>> packing = plan_hosts(hosts, join_hosts(hosts, network_gbps=40), Flow.BOTH)
    >>> packing.rate, packing.is_optimal  # in MB/s: a NIC sends the data once
    (Fraction(5000, 1), True)
    """
    _check(hosts, joined, flow, root)
    if len(hosts) == 1:
        return in_shares(joined, *pack(joined, flow, root))
    network = network_bound(hosts, joined, flow, root)
    wanted = check_certificate(joined, network)
    local = [
        local_trees(host, flow, root=local_root(joined, root, number), wanted=wanted)
        for number, host in enumerate(hosts)
    ]
    trees, parts = _joined_trees(hosts, joined, flow, root, local)
    packing = _at_full_rate(joined, Packing(flow, root, trees, parts))
    proofs = [network]
    if joined.size <= _JOINT_RANKS:
        optimum, proof = pack(joined, flow, root, loss=Fraction(0))
        if packing.rate < optimum.rate * (1 - DEFAULT_LOSS):
            packing = optimum
        proofs.append(proof)
    elif packing.rate < wanted:
        slow = [number for number, each in enumerate(local) if each.rate and each.rate < wanted]
        proofs += outside_bounds(hosts, joined, flow, root, slow)
    return in_shares(
        joined, packing, min(proofs, key=lambda proof: check_certificate(joined, proof))
    )


def local_trees(
    host: Topology, flow: Flow, *, root: Rank | None = None, wanted: Fraction
) -> LocalTrees:
    """Return the trees of one host that carry a part each of all data.

    Few trees, if these reach the `wanted` rate; else the fastest. For broadcast and reduce without
    a given root all trees have one root, that with the best rate.

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

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> found = local_trees(machine("dgx-1v", "all"), Flow.BOTH, wanted=Fraction(50_000))
    >>> sum(each.part for each in found.trees), found.rate > 50_000
    (Fraction(1, 1), True)
    """
    if host.size == 1:
        return LocalTrees((LocalTree(Tree(0, ()), Fraction(1)),), None)
    roots = [root] if root is not None or flow is Flow.BOTH else list(range(host.size))
    found: list[Packing] = []
    for each in roots:
        found.append(pack(host, flow, each)[0])
        if found[-1].rate >= wanted:
            break
    best = max(found, key=lambda packing: packing.rate)  # the first of equals
    if best.rate < wanted:
        best, _ = pack(host, flow, best.root, loss=Fraction(0))
    trees = zip(best.trees, best.rates, strict=True)
    return LocalTrees(
        tuple(LocalTree(tree, rate / best.rate) for tree, rate in trees),
        best.rate,
    )


def plan_equal_hosts(
    host: Topology, *, num_hosts: int, network_mb_per_s: int
) -> tuple[LocalTrees, Fraction]:
    """Return allreduce over many equal hosts without ever looking at all their ranks.

    It is the plan that `plan_hosts` makes of so many hosts, where that does not take the joint
    optimum: every local tree's part is cut into `num_hosts` equal ones; in the g-th the root of
    the tree's image on host g is the root of all, and the roots of its images on the other hosts
    are its children over the network.

    Parameters
    ----------
    host : Topology
        One of the hosts, in MB/s.
    num_hosts : int
        At least 2.
    network_mb_per_s : int
        What a host sends, and what it receives.

    Returns
    -------
    local : LocalTrees
        Of every host.
    rate : Fraction
        Of allreduce, in MB/s.

    Raises
    ------
    PlanError
        If there are less than 2 hosts, or the network has no rate.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> dgx1 = machine("dgx-1v", "all")
    >>> _, rate = plan_equal_hosts(dgx1, num_hosts=128, network_mb_per_s=12_500)
    >>> float(rate)  # 64 / 127 of the network
    6299.212598425197
    """
    if num_hosts < 2 or network_mb_per_s < 1:
        raise PlanError(f"{num_hosts} hosts at {network_mb_per_s} MB/s: nothing to plan between")
    wanted = Fraction(network_mb_per_s * num_hosts, 2 * (num_hosts - 1))
    local = local_trees(host, Flow.BOTH, wanted=wanted)
    return local, wanted if local.rate is None else min(wanted, local.rate)


def _check(hosts: Sequence[Topology], joined: Topology, flow: Flow, root: Rank | None) -> None:
    if flow not in FLOWS:
        raise PlanError(f"{flow} over several hosts is not planned; allreduce, broadcast, reduce")
    if (root is None) is flow.is_rooted or root not in (None, *range(joined.size)):
        raise PlanError(f"{flow} from root {root} of {joined.size} ranks")
    sizes = [len(ranks) for ranks in ranks_by_host(joined)]
    if sizes != [host.size for host in hosts]:
        raise PlanError(
            f"{joined.name} has hosts of {sizes} ranks, not of {[host.size for host in hosts]}"
        )
    if joined.size < 2:
        raise PlanError("a single rank needs no trees")


def _joined_trees(
    hosts: Sequence[Topology],
    joined: Topology,
    flow: Flow,
    root: Rank | None,
    local: Sequence[LocalTrees],
) -> tuple[tuple[Tree, ...], tuple[Fraction, ...]]:
    """Return the trees over all ranks, and the part of the data that each carries."""
    first = [ranks[0] for ranks in ranks_by_host(joined)]
    index = {link: at for at, link in enumerate(joined.links)}
    between = {
        (link.src, link.dst): at
        for at, link in enumerate(joined.links)
        if link.kind is LinkKind.NETWORK
    }
    renamed = [
        [_renamed(each.tree, host, number, first[number], index) for each in own.trees]
        for number, (host, own) in enumerate(zip(hosts, local, strict=True))
    ]
    trees: list[Tree] = []
    parts: list[Fraction] = []
    for part, chosen in _partitions(local):
        below = [renamed[number][at] for number, at in enumerate(chosen)]
        ways = list(_ways(joined, root, [tree.root for tree in below]))
        for way in ways:
            edges = [edge for tree in below for edge in tree.edges]
            edges += [
                Edge(
                    parent, child, tuple(sorted(between[d] for d in flow.directions(parent, child)))
                )
                for parent, child in way
            ]
            trees.append(Tree(way[0][0], tuple(sorted(edges))))
            parts.append(part / len(ways))
    return tuple(trees), tuple(parts)


def _ways(
    joined: Topology, root: Rank | None, roots: Sequence[Rank]
) -> Iterator[tuple[tuple[Rank, Rank], ...]]:
    """Yield the trees over the hosts' local roots, as (parent, child); the first starts at the top.

    Without a root every host is on top once, and all others hang on it. With one, every other host
    once stands between the root's and the rest.
    """
    if root is None:
        for top in roots:
            yield tuple((top, other) for other in roots if other != top)
        return
    others = [rank for rank in roots if rank != root]
    for middle in others:
        yield ((root, middle), *((middle, rank) for rank in others if rank != middle))


def _partitions(local: Sequence[LocalTrees]) -> Iterator[tuple[Fraction, tuple[int, ...]]]:
    """Yield the common refinement of the hosts' shares: a part, and which tree each host takes.

    >>> half, third = (
    ...     LocalTrees((LocalTree(Tree(0, ()), part), LocalTree(Tree(1, ()), 1 - part)), None)
    ...     for part in (Fraction(1, 2), Fraction(1, 3))
    ... )
    >>> [(str(part), trees) for part, trees in _partitions([half, third])]
    [('1/3', (0, 0)), ('1/6', (0, 1)), ('1/2', (1, 1))]
    """
    ends = [list(accumulate(each.part for each in own.trees)) for own in local]
    cuts = sorted({Fraction(0), *(end for own in ends for end in own)})
    for low, high in pairwise(cuts):
        yield high - low, tuple(sum(end <= low for end in own) for own in ends)


def _renamed(
    tree: Tree, host: Topology, number: int, first: Rank, index: Mapping[Link, int]
) -> Tree:
    """Return a host's tree in the ranks and links of the joined topology."""
    links = {
        at: index.get(own_link(host.links[at], number, first)) for e in tree.edges for at in e.links
    }
    edges = []
    for edge in tree.edges:
        taken = [links[at] for at in edge.links]
        if None in taken:
            raise PlanError(f"host {number} ({host.name}) has links that the joined topology lacks")
        edges.append(
            Edge(
                first + edge.parent,
                first + edge.child,
                tuple(sorted(at for at in taken if at is not None)),
            )
        )
    return Tree(first + tree.root, tuple(edges))


def _at_full_rate(topology: Topology, packing: Packing) -> Packing:
    """Return the packing with its rates grown until a resource is full."""
    factor = fastest_rate(topology, packing) / packing.rate
    return replace(packing, rates=tuple(rate * factor for rate in packing.rates))
