r"""A linear program that grows and shrinks by columns, solved by the simplex method, exactly.

Maximise :math:`g \cdot x` such that :math:`A x \le b` and :math:`x \ge 0`, with :math:`b \ge 0`.
Each solution starts from the one before, which is what makes column generation and the search for
few trees quick. Pivots are in floating point; the basis that they end at is then solved in
fractions, which gives the optimum and its prices without rounding.

Packings are highly degenerate: many resources are full at once. Limits are raised by unlike small
parts, so that every step gains and none is walked in circles (Charnes, 1952). The final basis is
the same, and the fractions know nothing of those parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from blinkrun.errors import InternalError
from blinkrun.planner.rational import solve_square

_TOLERANCE = 1e-9
_RAISED = (1e-6, 1e-9)  # relative; the second where vertices lie closer together than the first
_PENALTY = 1e3  # what a column costs that is to go, in gains
_MAX_PIVOTS = 20_000
_ROOM = 32


@dataclass(frozen=True, slots=True)
class Vertex:
    """An optimal vertex in fractions: what each column carries, what each row is worth."""

    values: dict[int, Fraction]
    prices: tuple[Fraction, ...]


class Simplex:
    """The program, and the tableau at which it is optimal for the columns so far.

    Rows of the tableau are basic variables, columns those at 0; the last row is what each of them
    would gain. Variables are column numbers, and ``-1 - row`` for what a row has left.

    Parameters
    ----------
    limits : sequence of int
        The right-hand side, not negative.
    """

    def __init__(self, limits: Sequence[int]) -> None:
        self.limits = tuple(limits)
        self._columns: dict[int, tuple[Mapping[int, int], int]] = {}
        self._next = 0
        self._scale = min((limit for limit in self.limits if limit), default=1)
        self._rows = [self._scale / limit if limit else 1.0 for limit in self.limits]
        self._start(_RAISED[0])

    def _start(self, raised_by: float) -> None:
        """Begin anew, with limits that are each raised by another small part (golden section)."""
        size = len(self.limits)
        turns = np.arange(1, size + 1) * 0.6180339887498949
        base = np.array([1.0 if limit else 0.0 for limit in self.limits])
        self._right: NDArray[np.float64] = np.zeros(size + 1)
        self._right[:size] = base + raised_by * (1.0 + turns % 1.0)
        self._table: NDArray[np.float64] = np.zeros((size + 1, _ROOM))
        self._basic = [-1 - row for row in range(size)]
        self._idle: list[int] = []

    def _restart(self, raised_by: float) -> None:
        """Solve the program anew."""
        self._start(raised_by)
        for number, (column, gain) in self._columns.items():
            self._enlist(number, self._transformed(column, gain))
        self.solve()

    def copy(self) -> Simplex:
        """Return one to try something with."""
        other = object.__new__(Simplex)
        other.limits, other._scale, other._rows = self.limits, self._scale, self._rows
        other._columns = dict(self._columns)
        other._next = self._next
        other._right = self._right.copy()
        other._table = self._table.copy()
        other._basic = list(self._basic)
        other._idle = list(self._idle)
        return other

    def add(self, column: Mapping[int, int], gain: int = 1) -> int:
        """Add a column, what it takes of each row and what it gains; return its number."""
        number = self._next
        self._next += 1
        self._columns[number] = column, gain
        self._enlist(number, self._transformed(column, gain))
        return number

    def steps(self, columns: Sequence[Mapping[int, int]], gain: int = 1) -> list[float]:
        """Return what each of these columns would gain by the first pivot alone."""
        if not columns:
            return []
        table = self._inverse() @ np.transpose([self._dense(c) for c in columns])
        takes = table[:-1] > _TOLERANCE
        room = np.where(takes, self._right[:-1, None] / np.where(takes, table[:-1], 1.0), np.inf)
        gains: list[float] = ((table[-1] + gain) * room.min(axis=0) * self._scale).tolist()
        return gains

    def _dense(self, column: Mapping[int, int]) -> NDArray[np.float64]:
        dense = np.zeros(len(self.limits))
        for row, times in column.items():
            dense[row] = times * self._rows[row]
        return dense

    def _inverse(self) -> NDArray[np.float64]:
        """Return what the rows have become, as combinations of the rows at the start."""
        size = len(self.limits)
        inverse = np.zeros((size + 1, size))
        for at, variable in enumerate(self._idle):
            if variable < 0:
                inverse[:, -1 - variable] = self._table[:, at]
        for row, variable in enumerate(self._basic):
            if variable < 0:
                inverse[row, -1 - variable] = 1.0
        return inverse

    def _transformed(self, column: Mapping[int, int], gain: int) -> NDArray[np.float64]:
        new: NDArray[np.float64] = self._inverse() @ self._dense(column)
        new[-1] += gain
        return new

    def _enlist(self, number: int, column: NDArray[np.float64]) -> None:
        if len(self._idle) == self._table.shape[1]:
            self._table = np.hstack([self._table, np.zeros_like(self._table)])
        self._table[:, len(self._idle)] = column
        self._idle.append(number)

    def remove(self, number: int) -> None:
        """Take a column out; the rest is optimal again."""
        if number in self._basic:
            row = self._basic.index(number)
            gain = self._columns[number][1] + _PENALTY
            width = len(self._idle)
            self._table[-1, :width] += gain * self._table[row, :width]
            self._right[-1] += gain * self._right[row]
            self.solve()
        del self._columns[number]
        if number in self._basic:  # it carries nothing, yet rounding keeps it
            self._restart(_RAISED[0])
            return
        at, last = self._idle.index(number), len(self._idle) - 1
        self._table[:, at] = self._table[:, last]
        self._idle[at] = self._idle[last]
        self._idle.pop()

    def solve(self) -> float:
        """Make the tableau optimal for all columns; return the gain."""
        for _ in range(_MAX_PIVOTS):
            width = len(self._idle)
            gains = self._table[-1, :width]
            best = int(gains.argmax()) if width else 0
            if not width or gains[best] <= _TOLERANCE:
                return -float(self._right[-1]) * self._scale
            self._pivot(best)
        raise InternalError(f"the packing program has not converged after {_MAX_PIVOTS} pivots")

    def _pivot(self, entering: int) -> None:
        table = self._table[:, : len(self._idle)]
        change = table[:, entering].copy()
        rows = (change[:-1] > _TOLERANCE).nonzero()[0]
        if not len(rows):
            raise InternalError("the packing program has no bound")
        row = int(rows[(self._right[rows] / change[rows]).argmin()])
        head = table[row] / change[row]
        share = self._right[row] / change[row]
        table -= np.multiply.outer(change, head)
        self._right -= change * share
        table[row] = head
        table[:, entering] = change / -change[row]
        table[row, entering] = 1.0 / change[row]
        self._right[row] = share
        self._basic[row], self._idle[entering] = self._idle[entering], self._basic[row]

    def values(self) -> dict[int, float]:
        """Return what each column carries that carries anything."""
        return {
            variable: value * self._scale
            for variable, value in zip(self._basic, self._right.tolist(), strict=False)
            if variable >= 0 and value > 0
        }

    def prices(self) -> list[float]:
        """Return what one unit of each row is worth, not less than 0."""
        prices = [0.0] * len(self.limits)
        for variable, gain in zip(self._idle, self._table[-1].tolist(), strict=False):
            if variable < 0:
                prices[-1 - variable] = max(0.0, -gain) * self._rows[-1 - variable]
        return prices

    def vertex(self) -> Vertex | None:
        """Return the optimum in fractions, or None if rounding has led to another basis."""
        for raised_by in _RAISED:
            self._restart(raised_by)
            found = self._exact()
            if found is not None:
                return found
        return None

    def _exact(self) -> Vertex | None:
        """Return the vertex of the present basis if it is feasible and optimal, exactly."""
        kept = sorted(number for number in self._basic if number >= 0)
        loose = {-1 - number for number in self._basic if number < 0}
        tight = [row for row in range(len(self.limits)) if row not in loose]
        square = [[self._columns[number][0].get(row, 0) for number in kept] for row in tight]
        turned = [*map(list, zip(*square, strict=True))]
        carried = solve_square(square, [self.limits[row] for row in tight])
        worth = solve_square(turned, [self._columns[number][1] for number in kept])
        if carried is None or worth is None or min((*carried, *worth), default=0) < 0:
            return None
        prices = [Fraction(0)] * len(self.limits)
        for row, price in zip(tight, worth, strict=True):
            prices[row] = price
        vertex = Vertex(dict(zip(kept, carried, strict=True)), tuple(prices))
        return vertex if self._holds(vertex) else None

    def _holds(self, vertex: Vertex) -> bool:
        """Whether no row is overrun and no column would gain; whole numbers are quicker."""
        whole = lcm(*(value.denominator for value in vertex.values.values()))
        loads = [0] * len(self.limits)
        for number, value in vertex.values.items():
            for row, times in self._columns[number][0].items():
                loads[row] += times * int(value * whole)
        if any(load > limit * whole for load, limit in zip(loads, self.limits, strict=True)):
            return False
        whole = lcm(*(price.denominator for price in vertex.prices))
        prices = [int(price * whole) for price in vertex.prices]
        return all(
            sum(times * prices[row] for row, times in column.items()) >= gain * whole
            for column, gain in self._columns.values()
        )
