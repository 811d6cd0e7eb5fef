"""Cheapest arborescences of large networks: Edmonds' algorithm on vectors of arcs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blinkrun.planner.network import Column, Network
from blinkrun.types import Rank

_Vector = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Level:
    """A network in which cycles have become nodes.

    Attributes
    ----------
    heads : array
        Per arc the node that it enters.
    best : list of int
        Per node the cheapest arc into it; -1 where there is none.
    cycles : list of list of int
        Of nodes whose cheapest arcs go round.
    """

    heads: _Vector
    best: list[int]
    cycles: list[list[int]]


def cheapest_arborescence(
    network: Network, root: Rank, weights: Sequence[int], arcs: Sequence[int]
) -> Column:
    """Return the arborescence from `root` with the least total weight.

    Chu and Liu (1965), Edmonds (1967): take the cheapest arc into every node; where these close
    cycles, make a node of each, charge arcs into it what they add, and go on.

    Parameters
    ----------
    network : Network
        Whose `arcs` lead from the root to every node that any of them names.
    root : Rank
    weights : sequence of int
        Not negative; times the number of arcs and of nodes they stay within 64 bits.
    arcs : sequence of int
        Those to choose from, preferred ones first where they cost the same.
    """
    tails = np.array([network.arcs[index].parent for index in arcs])
    heads = np.array([network.arcs[index].child for index in arcs])
    start, size = root, network.num_nodes
    # the place decides among equals: the places of a whole tree weigh less than any difference
    heavy = len(arcs) * size
    cost = np.array([weights[index] for index in arcs]) * heavy + np.arange(len(arcs))
    levels: list[_Level] = []
    while True:
        level = _level(tails, heads, cost, start, size)
        levels.append(level)
        if not level.cycles:
            break
        label = _labels(level.cycles, size)
        for cycle in level.cycles:
            for node in cycle:
                cost = np.where(heads == node, cost - cost[level.best[node]], cost)
        tails, heads, start = label[tails], label[heads], int(label[start])
        size = int(label.max()) + 1
    return tuple(sorted(arcs[at] for at in _unfolded(levels)))


def _level(tails: _Vector, heads: _Vector, cost: _Vector, root: int, size: int) -> _Level:
    usable = ((heads != root) & (heads != tails)).nonzero()[0]
    # of several values for one place the last stays: the cheapest
    dear_first = usable[np.argsort(-cost[usable], kind="stable")]
    best = np.full(size, -1)
    best[heads[dear_first]] = dear_first
    chosen: list[int] = best.tolist()
    before = [-1 if at < 0 else int(tails[at]) for at in chosen]
    return _Level(heads, chosen, _cycles(before))


def _cycles(before: Sequence[int]) -> list[list[int]]:
    """Return the cycles of nodes that each come from the one `before`, -1 for none."""
    done: set[int] = set()
    found = []
    for start in range(len(before)):
        path: list[int] = []
        node = start
        while node >= 0 and node not in done:
            done.add(node)
            path.append(node)
            node = before[node]
        if node >= 0 and node in path:
            found.append(path[path.index(node) :])
    return found


def _labels(cycles: Sequence[Sequence[int]], size: int) -> _Vector:
    """Return the new number of every node; the nodes of a cycle become one."""
    first = {node: cycle[0] for cycle in cycles for node in cycle}
    kept = [node for node in range(size) if first.get(node, node) == node]
    number = {node: at for at, node in enumerate(kept)}
    return np.array([number[first.get(node, node)] for node in range(size)])


def _unfolded(levels: Sequence[_Level]) -> set[int]:
    """Return the arcs of the last level and, back to the first, those that keep cycles together."""
    chosen = {at for at in levels[-1].best if at >= 0}
    for level in reversed(levels[:-1]):
        entered = {int(level.heads[at]) for at in chosen}
        for cycle in level.cycles:
            chosen |= {level.best[node] for node in cycle if node not in entered}
    return chosen
