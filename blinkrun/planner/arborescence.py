"""Cheapest arborescences of large networks: Edmonds' algorithm on a matrix of weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blinkrun.planner.network import Column, Network
from blinkrun.types import Rank

_Matrix = NDArray[np.int64]
_NONE = 2**62  # the weight of an arc that is not there


def cheapest_arborescence(
    network: Network, root: Rank, weights: Sequence[int], arcs: Sequence[int]
) -> Column:
    """Return the arborescence from `root` with the least total weight.

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
    size = network.num_nodes
    cost = np.full((size, size), _NONE, dtype=np.int64)
    name = np.full((size, size), -1, dtype=np.int64)
    for place, index in enumerate(arcs):
        arc = network.arcs[index]
        # the place decides among equals, and weighs less than any difference
        weight = weights[index] * len(arcs) + place
        if weight < cost[arc.parent, arc.child] and arc.child != root:
            cost[arc.parent, arc.child] = weight
            name[arc.parent, arc.child] = index
    where = list(range(size))
    return tuple(sorted(_chosen(network, root, where, cost, name)))


def _chosen(
    network: Network, root: int, where: list[int], cost: _Matrix, name: _Matrix
) -> set[int]:
    """Return the arcs of a minimum arborescence (Chu and Liu, 1965; Edmonds, 1967).

    `where` says which node of the matrices each node of the network has become.
    """
    tails = cost.argmin(axis=0)
    least = cost.min(axis=0)
    cycle = _cycle(root, tails.tolist(), (least < _NONE).tolist())
    if not cycle:
        heads = (least < _NONE).nonzero()[0]
        return set(name[tails[heads], heads].tolist())
    kept = [node for node in range(len(cost)) if node not in cycle]
    inner_cost, inner_name = _contracted(cost, name, least, cycle, kept)
    new = {node: at for at, node in enumerate(kept)} | dict.fromkeys(cycle, len(kept))
    inner_where = [new[node] for node in where]
    chosen = _chosen(network, new[root], inner_where, inner_cost, inner_name)
    entered = {where[network.arcs[index].child] for index in chosen}
    return chosen | {int(name[tails[node], node]) for node in cycle if node not in entered}


def _contracted(
    cost: _Matrix, name: _Matrix, least: NDArray[np.int64], cycle: list[int], kept: list[int]
) -> tuple[_Matrix, _Matrix]:
    """Return the matrices with the cycle as one node, the last; arcs into it cost what they add."""
    size = len(kept)
    inner_cost = np.full((size + 1, size + 1), _NONE, dtype=np.int64)
    inner_name = np.full((size + 1, size + 1), -1, dtype=np.int64)
    inner_cost[:size, :size] = cost[np.ix_(kept, kept)]
    inner_name[:size, :size] = name[np.ix_(kept, kept)]
    rows = np.arange(size)
    into = cost[np.ix_(kept, cycle)]
    added = np.where(into < _NONE, into - least[cycle], _NONE)
    best = added.argmin(axis=1)
    inner_cost[:size, size] = added[rows, best]
    inner_name[:size, size] = name[np.ix_(kept, cycle)][rows, best]
    out = cost[np.ix_(cycle, kept)]
    best = out.argmin(axis=0)
    inner_cost[size, :size] = out[best, rows]
    inner_name[size, :size] = name[np.ix_(cycle, kept)][best, rows]
    return inner_cost, inner_name


def _cycle(root: int, tails: Sequence[int], entered: Sequence[bool]) -> list[int]:
    """Return the nodes of a cycle among the cheapest arcs into every node, or nothing."""
    done = {root}
    for start in range(len(tails)):
        path: list[int] = []
        node = start
        while node not in done and entered[node]:
            done.add(node)
            path.append(node)
            node = tails[node]
        if node in path:
            return path[path.index(node) :]
    return []
