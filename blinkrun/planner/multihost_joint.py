"""Allgather and reducescatter over hosts: a broadcast or a reduce of every rank's own block."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from blinkrun.planner.multihost_local import LocalTree, LocalTrees, local_trees, star
from blinkrun.planner.multihost_trees import Joiner
from blinkrun.planner.multihost_ways import Way, direct, relayed
from blinkrun.planner.packing import Flow, Packing, fastest_rate
from blinkrun.topology.graph import Topology

_ROOTED = {Flow.ALL_DOWN: Flow.DOWN, Flow.ALL_UP: Flow.UP}


def joint_packing(joiner: Joiner, flow: Flow, rates: Sequence[Fraction]) -> Packing:
    """Return trees of all ranks over all hosts, with equal rates.

    A block goes from its rank straight to all other hosts, or by one of them to the rest, whichever
    is faster: hosts of about as many ranks need no detour. On other hosts the ranks that blocks
    arrive at take turns.

    Parameters
    ----------
    joiner : Joiner
    flow : Flow
        Allgather or reducescatter.
    rates : sequence of Fraction
        What the NICs of each host carry.
    """
    hosts = range(len(rates))
    straight: list[list[Way]] = [[(Fraction(1), direct(hosts, top))] for top in hosts]
    found = [_packing(joiner, flow, straight)]
    if len(rates) > 2:
        found.append(_packing(joiner, flow, [relayed(rates, top) for top in hosts]))
    return max(found, key=lambda packing: fastest_rate(joiner.joined, packing))


def _packing(joiner: Joiner, flow: Flow, ways: Sequence[Sequence[Way]]) -> Packing:
    """Return the packing in which blocks of each host take its ways; its rates are parts."""
    rooted = _ROOTED[flow]
    entries = [_Entries(host, rooted) for host in joiner.hosts]
    trees, parts = [], []
    for top, host in enumerate(joiner.hosts):
        for rank in range(host.size):
            local = [
                _of_root(host, rooted, rank) if number == top else entries[number].next()
                for number in range(len(joiner.hosts))
            ]
            root = joiner.first[top] + rank
            for tree, part in joiner.trees(rooted, root, local, ways[top]):
                trees.append(tree)
                parts.append(part)
    return Packing(flow, None, tuple(trees), tuple(parts))


class _Entries:
    """The trees that blocks of other hosts take inside a host, rank by rank in turn."""

    def __init__(self, host: Topology, flow: Flow) -> None:
        stars = [star(host, flow, rank) for rank in range(host.size)]
        self._all = [
            LocalTrees((LocalTree(tree, Fraction(1)),), None) for tree in stars if tree is not None
        ]
        if len(self._all) < host.size:
            self._all = [local_trees(host, flow, wanted=Fraction(0))]
        self._at = -1

    def next(self) -> LocalTrees:
        self._at = (self._at + 1) % len(self._all)
        return self._all[self._at]


def _of_root(host: Topology, flow: Flow, root: int) -> LocalTrees:
    """Return the trees on the block's own host; the root itself speaks with the others."""
    tree = star(host, flow, root)
    if tree is None:
        return local_trees(host, flow, root=root, wanted=Fraction(0))
    return LocalTrees((LocalTree(tree, Fraction(1)),), None)
