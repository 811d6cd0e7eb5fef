"""Cheapest trees with whole-number weights; ties go to the arc that is listed first.

With relays these are Steiner trees: every choice of relays is tried, and the cheapest of the
spanning trees over the ranks and those relays is the cheapest of all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations

from blinkrun.errors import InternalError
from blinkrun.planner.network import Column, Network, pruned
from blinkrun.types import Rank

_MANY_ARCS = 300  # from here on vectors are quicker than loops
_MAX_WEIGHT = 2**48  # times the number of nodes and a little more this stays within 64 bits


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
        arcs = sorted(arcs, key=weights.__getitem__)
    best: tuple[int, Column] | None = None
    for nodes in _node_sets(network):
        within = arcs if len(nodes) == network.num_nodes else _within(network, arcs, nodes)
        if network.num_relays and not _joins(network, root, within, nodes):
            continue
        tree = _spanning(network, root, weights, within)
        cost = sum(weights[arc] for arc in tree)
        # few relays come first, so no relay of the best tree is one that leads nowhere
        if best is None or cost < best[0]:
            best = cost, tree
    if best is None:
        raise InternalError("no tree joins all ranks")
    return best[1]


def layered_tree(network: Network, hub: Rank, weights: Sequence[int]) -> Column:
    """Return the cheapest of the trees in which every node is as close to `hub` as it can be."""
    hops = {hub: 0}
    layer = [hub]
    chosen: list[int] = []
    while layer:
        into: dict[Rank, tuple[int, int]] = {}
        for node in layer:
            for other, index in network.reach[node]:
                if other not in hops:
                    into[other] = min(
                        into.get(other, (weights[index], index)), (weights[index], index)
                    )
        for other in into:
            hops[other] = hops[layer[0]] + 1
        chosen += [index for _, index in into.values()]
        layer = list(into)
    return pruned(network, chosen)


def _node_sets(network: Network) -> Iterator[Collection[int]]:
    """Yield the ranks with every choice of relays, few relays first."""
    relays = range(network.size, network.num_nodes)
    for count in range(network.num_relays + 1):
        for chosen in combinations(relays, count):
            yield {*range(network.size), *chosen}


def _within(network: Network, arcs: Sequence[int], nodes: Collection[int]) -> list[int]:
    return [
        index
        for index in arcs
        if network.arcs[index].parent in nodes and network.arcs[index].child in nodes
    ]


def _joins(
    network: Network, root: Rank | None, arcs: Sequence[int], nodes: Collection[int]
) -> bool:
    """Whether `arcs` lead from the root (or rank 0) to all of `nodes`."""
    near: dict[int, list[int]] = {node: [] for node in nodes}
    for index in arcs:
        arc = network.arcs[index]
        near[arc.parent].append(arc.child)
        if root is None:
            near[arc.child].append(arc.parent)
    reached = {root or 0}
    waiting = [root or 0]
    while waiting:
        for other in near[waiting.pop()]:
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return len(reached) == len(near)


def _spanning(
    network: Network, root: Rank | None, weights: Sequence[int], arcs: Sequence[int]
) -> Column:
    if root is None:
        return _kruskal(network, arcs)
    if len(arcs) >= _MANY_ARCS and max(weights) * len(arcs) < _MAX_WEIGHT:
        # imported here only: numpy takes longer to import than small plans take to make
        from blinkrun.planner.arborescence import cheapest_arborescence  # noqa: PLC0415

        return cheapest_arborescence(network, root, weights, arcs)
    entries = [
        (network.arcs[index].parent, network.arcs[index].child, weights[index], index)
        for index in arcs
    ]
    return tuple(sorted(_edmonds(network.num_nodes, root, entries)))


def _kruskal(network: Network, ascending: Sequence[int]) -> Column:
    """Return the minimum spanning tree (Kruskal, 1956)."""
    group = list(range(network.num_nodes))
    most = network.num_nodes - 1
    chosen: list[int] = []
    for index in ascending:
        arc = network.arcs[index]
        one, other = group[arc.parent], group[arc.child]
        if one != other:
            chosen.append(index)
            if len(chosen) == most:
                break
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
