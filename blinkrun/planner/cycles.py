"""The most rings that fit side by side into point-to-point lanes.

A ring visits every rank once and takes a lane of every hop. How many fit is hard in general, but
machines are small: all rings of up to 8 ranks (and of larger machines with few links) are listed,
and a whole-number program chooses among them. Where there are too many to list, rings are taken
one after the other, and the answer says that more might fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from blinkrun.errors import InternalError
from blinkrun.types import Rank

Order = tuple[Rank, ...]  # of a ring, from rank 0; the last rank is followed by the first
Lanes = Mapping[tuple[Rank, Rank], int]

_MAX_STEPS = 60_000  # of the search for all rings: a count, not a time, so that it is repeatable
_MAX_TRIES = 3_000  # of the search for one ring

# All 56 hops of 8 ranks in 7 one-way rings, found once by the program below, which takes seconds
# for them. They exist for every number of ranks but 4 and 6 (T. Tillson, "A Hamiltonian
# decomposition of K*_2m", J. Combin. Theory B 29, 1980).
_EIGHT = (
    (0, 1, 3, 6, 2, 7, 5, 4),
    (0, 2, 3, 1, 4, 5, 6, 7),
    (0, 3, 2, 4, 1, 5, 7, 6),
    (0, 4, 7, 1, 6, 3, 5, 2),
    (0, 5, 1, 7, 2, 6, 4, 3),
    (0, 6, 5, 3, 7, 4, 2, 1),
    (0, 7, 3, 4, 6, 1, 2, 5),
)


@dataclass(frozen=True, slots=True)
class Cycles:
    """Rings that fit side by side; `is_most` if it is proven that no more do."""

    orders: tuple[Order, ...]
    is_most: bool


def pack_cycles(size: int, lanes: Lanes, *, one_way: bool = False) -> Cycles:
    """Return as many rings as fit, a ring of several lanes as often as it has lanes.

    Parameters
    ----------
    size : int
        Number of ranks, at least 3.
    lanes : mapping of (src, dst) to int
        Lanes of every hop and direction.
    one_way : bool, default False
        Whether a ring takes its hops in its own direction only, so that the way back may belong
        to another ring. Otherwise it takes a lane of both directions.

    Examples
    --------
    >>> full = {(a, b): 1 for a in range(5) for b in range(5) if a != b}
    >>> len(pack_cycles(5, full).orders), len(pack_cycles(5, full, one_way=True).orders)
    (2, 4)
    """
    room = _Room(size, lanes, one_way)
    most = room.bound()
    quick = room.known() or room.take_in_turn(most)
    if len(quick) == most:
        return Cycles(quick, is_most=True)
    every = room.every_ring(_MAX_STEPS)
    if every is None:
        return Cycles(quick, is_most=False)
    found = _search(room, every, most) or _choose(room, every)
    return Cycles(max(found, quick, key=len), is_most=True)


class _Room:
    """Lanes by hop; a hop is a pair of ranks, in either order unless `one_way`."""

    def __init__(self, size: int, lanes: Lanes, one_way: bool) -> None:
        self.size = size
        self.one_way = one_way
        self.lanes: dict[tuple[Rank, Rank], int] = {}
        for (src, dst), count in lanes.items():
            least = count if one_way else min(count, lanes.get((dst, src), 0))
            if least:
                self.lanes[self._hop(src, dst)] = least
        self.reach = [
            [other for other in range(size) if self._hop(rank, other) in self.lanes]
            for rank in range(size)
        ]

    def hops(self, order: Order) -> list[tuple[Rank, Rank]]:
        """Return what a ring takes a lane of."""
        return [self._hop(*pair) for pair in zip(order, (*order[1:], order[0]), strict=True)]

    def bound(self) -> int:
        """Return what the ranks' lanes allow: a ring enters and leaves every rank."""
        ends: list[int] = []
        for rank in range(self.size):
            out = sum(self._left(self.lanes, rank, other) for other in self.reach[rank])
            back = sum(self._left(self.lanes, other, rank) for other in range(self.size))
            ends.append(min(out, back) if self.one_way else out // 2)
        return min(ends)

    def known(self) -> tuple[Order, ...]:
        """Return the rings of eight ranks that are all linked to each other, if these are."""
        if not self.one_way or self.size != 8 or len(self.lanes) < 8 * 7:
            return ()
        return _EIGHT * min(self.lanes.values())

    def take_in_turn(self, most: int) -> tuple[Order, ...]:
        """Return up to `most` rings, each taken out of what the ones before it have left."""
        left = dict(self.lanes)
        taken: list[Order] = []
        while len(taken) < most:
            order = next(self._rings(left, _MAX_TRIES), None)
            if order is None:
                break
            taken.append(order)
            for hop in self.hops(order):
                left[hop] -= 1
        return tuple(taken)

    def every_ring(self, max_steps: int) -> list[Order] | None:
        """Return all rings, or None if the search takes more than `max_steps`."""
        found: list[Order] = []
        for order in self._rings(self.lanes, max_steps, give_up=False):
            if not order:
                return None
            found.append(order)
        return found

    def _rings(self, left: Lanes, max_steps: int, *, give_up: bool = True) -> Iterator[Order]:
        """Yield rings that `left` has lanes for; an empty one if the steps run out unnoticed.

        Of the ranks that may come next those with the fewest lanes left come first: they are the
        hardest to enter later.
        """
        spare = [
            sum(self._left(left, rank, other) for other in self.reach[rank])
            for rank in range(self.size)
        ]
        stack: list[Order] = [(0,)]
        for _ in range(max_steps):
            if not stack:
                return
            path = stack.pop()
            if len(path) == self.size:
                if self._left(left, path[-1], 0) and (self.one_way or path[1] < path[-1]):
                    yield path
                continue
            near = [
                rank
                for rank in self.reach[path[-1]]
                if rank not in path and self._left(left, path[-1], rank)
            ]
            near.sort(key=lambda rank: (spare[rank], rank), reverse=True)
            stack += [(*path, rank) for rank in near]
        if stack and not give_up:
            yield ()

    def _hop(self, src: Rank, dst: Rank) -> tuple[Rank, Rank]:
        return (src, dst) if self.one_way else (min(src, dst), max(src, dst))

    def _left(self, lanes: Lanes, src: Rank, dst: Rank) -> int:
        return lanes.get(self._hop(src, dst), 0)


def _search(room: _Room, every: Sequence[Order], most: int) -> tuple[Order, ...]:
    """Return `most` of these rings that fit, found by trying; nothing if that takes too long.

    For machines such as a DGX-1V it takes less time than loading a solver.
    """
    takes = [Counter(room.hops(order)) for order in every]
    stack: list[tuple[int, ...]] = [()]
    for _ in range(_MAX_TRIES):
        if not stack:
            break
        chosen = stack.pop()
        if len(chosen) == most:
            return tuple(every[at] for at in chosen)
        used: Counter[tuple[Rank, Rank]] = Counter()
        for at in chosen:
            used.update(takes[at])
        stack += [
            (*chosen, at)
            for at in reversed(range(chosen[-1] if chosen else 0, len(every)))
            if all(used[hop] + count <= room.lanes[hop] for hop, count in takes[at].items())
        ]
    return ()


def _choose(room: _Room, every: Sequence[Order]) -> tuple[Order, ...]:
    """Return the most of these rings that fit, by a whole-number program."""
    if not every:
        return ()
    # imported here only: most machines need no program
    import numpy as np  # noqa: PLC0415
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415

    row_of = {hop: row for row, hop in enumerate(sorted(room.lanes))}
    takes = np.zeros((len(row_of), len(every)))
    for column, order in enumerate(every):
        for hop in room.hops(order):
            takes[row_of[hop], column] += 1
    found = milp(
        -np.ones(len(every)),
        constraints=LinearConstraint(takes, -np.inf, [room.lanes[hop] for hop in row_of]),
        integrality=np.ones(len(every), dtype=np.int64),
        bounds=Bounds(0, max(room.lanes.values())),
    )
    if found.x is None:
        raise InternalError(f"the choice of rings was not solved: {found.message}")
    return tuple(
        order for order, x in zip(every, found.x, strict=True) for _ in range(round(float(x)))
    )
