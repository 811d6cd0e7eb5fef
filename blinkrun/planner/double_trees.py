"""Double binary trees: what a ring library takes for small data where any two ranks are linked.

Two binary trees over all ranks, each for half of the data, such that no rank is inner in both: a
rank that passes on one half only ends the other. Both together keep every port as busy as a ring
would, over log2 of the ranks' number of hops instead of all ranks [1]_. NCCL has them since 2.4
[2]_, and takes them for small data on a DGX-2 [3]_.

References
----------
.. [1] P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast,
   reduction and scan", Parallel Computing 35, 2009.
.. [2] S. Jeaugey, "Massively scale your deep learning training with NCCL 2.4", NVIDIA, 2019.
.. [3] G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020,
   section 5.4.
"""

from __future__ import annotations

from fractions import Fraction

from blinkrun.errors import PlanError
from blinkrun.planner.make import in_shares
from blinkrun.planner.packing import Edge, Flow, Packing, Tree, fastest_rate
from blinkrun.planner.plan import PlannedPacking
from blinkrun.planner.solve import pack
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank


def double_trees(topology: Topology) -> PlannedPacking:
    """Return the two binary trees for allreduce, each with half of the data.

    Parameters
    ----------
    topology : Topology
        At least two ranks; those that the trees join must be linked, both ways.

    Returns
    -------
    PlannedPacking
        Its rate is exact; its bound is that of the best trees.

    Raises
    ------
    PlanError
        If a link is missing, or there is a single rank.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> trees = double_trees(machine("dgx-2"))
    >>> [tree.root for tree in trees.trees], trees.depth, trees.rate
    ([15, 0], 4, Fraction(3, 1))
    """
    if topology.size < 2:
        raise PlanError("a single rank needs no trees")
    trees = tuple(_tree(topology, parents) for parents in binary_pair(topology.size))
    equal = Packing(Flow.BOTH, None, trees, (Fraction(1),) * 2)
    half = fastest_rate(topology, equal) / 2
    _, certificate = pack(topology, Flow.BOTH)
    return in_shares(topology, Packing(Flow.BOTH, None, trees, (half, half)), certificate)


def binary_pair(size: int) -> tuple[tuple[Rank, ...], tuple[Rank, ...]]:
    """Return the parents of every rank in the two trees; -1 for a root.

    In the first tree ranks are numbered in order, from 1: odd ones are leaves. The second is the
    first read backwards, or, where that would leave odd ones leaves, with every rank one on.

    >>> binary_pair(4)
    ((1, 3, 1, -1), (-1, 2, 0, 2))
    """
    first = [_parent(place, size) for place in range(1, size + 1)]
    renamed = [size - 1 - at if size % 2 == 0 else (at + 1) % size for at in range(size)]
    second = [-1] * size
    for rank, parent in enumerate(first):
        second[renamed[rank]] = renamed[parent] if parent >= 0 else -1
    return tuple(first), tuple(second)


def _parent(place: int, size: int) -> Rank:
    """Return the rank above the one at `place`, counted from 1, in a tree numbered in order."""
    step = place & -place
    above = (place - step) | (2 * step)
    if above > size:  # the far end of the tree is missing: what there is hangs one up
        above = place - step  # 0 above the root
    return above - 1


def _tree(topology: Topology, parents: tuple[Rank, ...]) -> Tree:
    links = _widest(topology)
    edges = []
    for child, parent in enumerate(parents):
        if parent < 0:
            continue
        ways = Flow.BOTH.directions(parent, child)
        missing = [way for way in ways if way not in links]
        if missing:
            src, dst = missing[0]
            raise PlanError(
                f"{topology.name}: double binary trees need a link {src}->{dst}; "
                "they are for ranks that are linked any to any"
            )
        edges.append(Edge(parent, child, tuple(sorted(links[way] for way in ways))))
    return Tree(parents.index(-1), tuple(sorted(edges)))


def _widest(topology: Topology) -> dict[tuple[Rank, Rank], int]:
    """Return the widest link of every pair, the first of equals."""
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    width = [min(capacity[name] for name in link.resources) for link in topology.links]
    best: dict[tuple[Rank, Rank], int] = {}
    for at, link in enumerate(topology.links):
        pair = (link.src, link.dst)
        if pair not in best or width[at] > width[best[pair]]:
            best[pair] = at
    return best
