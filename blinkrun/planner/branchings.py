"""Whole-number packings of arborescences on networks where no two arcs share a resource.

By Edmonds' theorem [1]_ as many unit arborescences as the least cut between the root and another
rank fit side by side. Lovász' proof [2]_ grows them one arc at a time: an arc may be taken while
what is left still has the cut that the remaining trees need. They are few and equal where a
linear program tends to many trees of odd rates, and need no solver: the cut is the certificate.

References
----------
.. [1] J. Edmonds, "Edge-disjoint branchings", in Combinatorial Algorithms, 1973, 91-96.
.. [2] L. Lovász, "On two minimax theorems in graph", J. Combin. Theory B 21 (1976), 96-103.
"""

from __future__ import annotations

from collections import Counter, deque
from fractions import Fraction
from math import ceil, gcd

from blinkrun.errors import InternalError
from blinkrun.planner.network import Column, Network
from blinkrun.planner.seeds import Packed, rooted
from blinkrun.types import Rank

_Lanes = list[list[int]]
_MAX_TREES = 64  # more unit trees than this are no help to anyone who wants few


def pack_branchings(
    network: Network, root: Rank, loss: Fraction, floor: Fraction = Fraction(0)
) -> Packed | None:
    """Return unit trees from `root` at the rate of the least cut, up to `loss` less.

    Up to the rate `floor` nothing is given up. The unit is the greatest common divisor of the
    capacities. Growing starts anew with every order of the ranks, and the packing whose deepest
    tree is shallowest wins; of it the shallowest trees that make up the wanted rate are kept.

    Returns
    -------
    Packed or None
        None where arcs share a resource or there are relays (the theorem is about trees that
        reach every node), or where there would be too many trees.
    """
    if not network.is_separate or network.num_relays:
        return None
    unit = gcd(*network.capacities)
    width = [min(network.capacities[at] for at, _ in arc.use) // unit for arc in network.arcs]
    lanes = _between(network, width)
    others = [rank for rank in range(network.size) if rank != root]
    count, far = min((_flow(lanes, root, rank, _MAX_TREES + 1)[0], rank) for rank in others)
    if count > _MAX_TREES:
        return None
    tries = [
        sorted(
            rooted(network, root, column) for column in _grow_all(network, root, width, count, turn)
        )
        for turn in range(network.size)
    ]
    best = min(tries, key=lambda trees: (trees[-1].depth, sum(tree.depth for tree in trees)))
    wanted = min(max(count * (1 - loss), floor / unit), Fraction(count))
    few = Counter(best[: ceil(wanted)])
    near = _flow(lanes, root, far, count + 1)[1]
    prices = [Fraction(0)] * len(network.capacities)
    for arc in network.arcs:
        if arc.parent in near and arc.child not in near:
            prices[min((network.capacities[at], at) for at, _ in arc.use)[1]] = Fraction(1)
    return Packed(
        trees=tuple(few),
        rates=tuple(Fraction(times * unit) for times in few.values()),
        prices=tuple(prices),
        bound=Fraction(count * unit),
    )


def _between(network: Network, width: list[int]) -> _Lanes:
    lanes = [[0] * network.size for _ in range(network.size)]
    for arc, units in zip(network.arcs, width, strict=True):
        lanes[arc.parent][arc.child] += units
    return lanes


def _grow_all(
    network: Network, root: Rank, width: list[int], count: int, turn: int
) -> list[Column]:
    """Return `count` arborescences, visiting neighbours in the order of ``rank ^ turn``."""
    spare = list(width)
    lanes = _between(network, width)
    reach = [sorted(near, key=lambda item: item[0] ^ turn) for near in network.reach]
    return [_grow(reach, root, spare, lanes, left) for left in reversed(range(count))]


def _grow(
    reach: list[list[tuple[Rank, int]]], root: Rank, spare: list[int], lanes: _Lanes, left: int
) -> Column:
    """Take one arborescence out of `spare` and `lanes` so that `left` more still fit."""
    reached = {root}
    queue = deque([root])
    column: list[int] = []
    while queue:
        rank = queue.popleft()
        for other, index in reach[rank]:
            if other in reached or spare[index] == 0:
                continue
            lanes[rank][other] -= 1
            # an arc refused once stays so: the cut that needs it can only get tighter
            if _flow(lanes, root, other, left)[0] < left:
                lanes[rank][other] += 1
                continue
            spare[index] -= 1
            reached.add(other)
            column.append(index)
            queue.append(other)
    if len(reached) < len(reach):
        raise InternalError(f"no arborescence from rank {root} leaves {left} others")
    return tuple(sorted(column))


def _flow(lanes: _Lanes, source: Rank, sink: Rank, enough: int) -> tuple[int, set[Rank]]:
    """Return the maximum flow and the source's side of a least cut (Edmonds and Karp, 1972).

    Stops at a flow of `enough`; the cut is then empty.
    """
    left = [list(row) for row in lanes]
    flow = 0
    while flow < enough:
        came = {source: source}
        queue = deque([source])
        while queue and sink not in came:
            rank = queue.popleft()
            for other, units in enumerate(left[rank]):
                if units and other not in came:
                    came[other] = rank
                    queue.append(other)
        if sink not in came:
            return flow, set(came)
        rank = sink
        while rank != source:
            left[came[rank]][rank] -= 1
            left[rank][came[rank]] += 1
            rank = came[rank]
        flow += 1
    return flow, set()
