"""Cheapest spanning trees with whole-number weights; ties go to the arc that is listed first."""

from __future__ import annotations

from collections.abc import Sequence

from blinkrun.planner.network import Column, Network
from blinkrun.types import Rank


def cheapest_tree(
    network: Network, root: Rank | None, weights: Sequence[int], order: Sequence[int] | None = None
) -> Column:
    """Return the spanning tree with the least total weight.

    Parameters
    ----------
    network : Network
        Must join all ranks (from `root`, if one is given).
    root : Rank or None
        Of the arborescence; None for an undirected tree.
    weights : sequence of int
        One per arc, not negative.
    order : sequence of int, optional
        Every arc once: which of equally cheap arcs to prefer. Default: by index.

    Returns
    -------
    Column
        The arcs of the tree.
    """
    arcs = range(len(network.arcs)) if order is None else order
    if root is None:
        return _kruskal(network, sorted(arcs, key=weights.__getitem__))
    entries = [
        (network.arcs[index].parent, network.arcs[index].child, weights[index], index)
        for index in arcs
    ]
    return tuple(sorted(_edmonds(network.size, root, entries)))


def _kruskal(network: Network, ascending: Sequence[int]) -> Column:
    """Return the minimum spanning tree (Kruskal, 1956)."""
    group = list(range(network.size))
    chosen = []
    for index in ascending:
        arc = network.arcs[index]
        one, other = group[arc.parent], group[arc.child]
        if one != other:
            chosen.append(index)
            group = [one if at == other else at for at in group]
    return tuple(sorted(chosen))


_Entry = tuple[int, int, int, int]  # tail, head, weight, name


def _edmonds(size: int, root: int, entries: Sequence[_Entry]) -> set[int]:
    """Return the names of a minimum arborescence's arcs.

    Chu and Liu (1965), Edmonds (1967): take the cheapest arc into every node; where these close
    a cycle, contract it, charge arcs into it what they add, and solve the smaller problem.
    """
    best: dict[int, _Entry] = {}
    for entry in entries:
        tail, head, weight, _ = entry
        if head not in (root, tail) and (head not in best or weight < best[head][2]):
            best[head] = entry
    cycle = _cycle(root, best)
    if not cycle:
        return {name for _, _, _, name in best.values()}
    inner: list[_Entry] = []
    enters: dict[int, int] = {}  # name of an arc into the cycle: the node that it enters
    for tail, head, weight, name in entries:
        if head in cycle and tail not in cycle:
            enters[name] = head
            inner.append((tail, size, weight - best[head][2], name))
        elif head not in cycle:
            inner.append((size if tail in cycle else tail, head, weight, name))
    chosen = _edmonds(size + 1, root, inner)
    entered = next(enters[name] for name in sorted(chosen) if name in enters)
    return chosen | {best[node][3] for node in cycle if node != entered}


def _cycle(root: int, best: dict[int, _Entry]) -> set[int]:
    """Return the nodes of a cycle among the best arcs, or nothing."""
    done = {root}
    for start in best:
        path: list[int] = []
        node = start
        while node not in done:
            done.add(node)
            path.append(node)
            node = best[node][0]
        if node in path:
            return set(path[path.index(node) :])
    return set()
