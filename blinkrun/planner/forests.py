"""Whole-number packings of undirected trees on networks where no two arcs share a resource.

The partition theorem of Tutte and Nash-Williams says how many spanning trees fit side by side;
matroid partition [1]_ finds them: edges are put into forests one by one, and where an edge fits
nowhere, others move over along a shortest chain of exchanges.

References
----------
.. [1] J. Edmonds, "Minimum partition of a matroid into independent subsets", J. Res. NBS 69B
   (1965), 67-72.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from blinkrun.planner.network import Column, Network

_Copy = tuple[int, int]  # an arc and which of its lanes


def pack_forests(network: Network, room: Sequence[int], count: int) -> list[Column]:
    """Return `count` spanning trees that together take at most `room` of each resource.

    Parameters
    ----------
    network : Network
        Of allreduce, without shared resources (see `Network.is_separate`).
    room : sequence of int
        Whole units of each resource.
    count : int
        How many unit trees, at least 1.

    Returns
    -------
    list of Column
        The trees, maybe with repeats; empty if so many do not fit.
    """
    copies = [
        (index, lane)
        for lane in range(count)
        for index, arc in enumerate(network.arcs)
        if lane < min(room[at] // times for at, times in arc.use)
    ]
    if len(copies) < count * (network.size - 1):
        return []
    partition = _Partition(network, count)
    for copy in copies:
        partition.insert(copy)
    trees = [tuple(sorted(index for index, _ in forest)) for forest in partition.forests]
    return trees if all(len(tree) == network.size - 1 for tree in trees) else []


class _Partition:
    """Forests over the ranks, and the insertion that keeps them forests."""

    def __init__(self, network: Network, count: int) -> None:
        self.forests: list[set[_Copy]] = [set() for _ in range(count)]
        self._network = network
        self._home: dict[_Copy, int] = {}

    def insert(self, copy: _Copy) -> None:
        """Put an edge into some forest, if any exchange makes room for it."""
        came: dict[_Copy, _Copy | None] = {copy: None}
        queue = deque([copy])
        while queue:
            edge = queue.popleft()
            for number in self._order(edge):
                if number == self._home.get(edge):
                    continue
                cycle = self._path(number, edge)
                if cycle is None:
                    self._shift(edge, number, came)
                    return
                for other in cycle:
                    if other not in came:
                        came[other] = edge
                        queue.append(other)

    def _order(self, edge: _Copy) -> list[int]:
        """Prefer the forests whose hub the edge touches: they grow into shallow trees.

        (The hubs begin with rank 1: from there the search for few trees gets farther on a DGX-1P.)
        """
        arc = self._network.arcs[edge[0]]
        size = self._network.size
        return sorted(
            range(len(self.forests)),
            key=lambda number: ((number + 1) % size not in (arc.parent, arc.child), number),
        )

    def _shift(self, edge: _Copy, number: int, came: dict[_Copy, _Copy | None]) -> None:
        """Move `edge` to a forest, what wanted its place into that place, and so on."""
        moving: _Copy | None = edge
        while moving is not None:
            place = self._home.get(moving)
            if place is not None:
                self.forests[place].remove(moving)
            self.forests[number].add(moving)
            self._home[moving] = number
            moving = came[moving]
            if place is not None:
                number = place

    def _path(self, number: int, edge: _Copy) -> list[_Copy] | None:
        """Return the path in a forest between the ends of `edge`, or None if there is none."""
        near: dict[int, list[tuple[int, _Copy]]] = {}
        for copy in sorted(self.forests[number]):
            arc = self._network.arcs[copy[0]]
            near.setdefault(arc.parent, []).append((arc.child, copy))
            near.setdefault(arc.child, []).append((arc.parent, copy))
        start, goal = self._network.arcs[edge[0]].parent, self._network.arcs[edge[0]].child
        came: dict[int, tuple[int, _Copy] | None] = {start: None}
        queue = deque([start])
        while queue:
            rank = queue.popleft()
            for other, copy in near.get(rank, ()):
                if other not in came:
                    came[other] = (rank, copy)
                    queue.append(other)
        if goal not in came:
            return None
        path = []
        step = came[goal]
        while step is not None:
            path.append(step[1])
            step = came[step[0]]
        return path
