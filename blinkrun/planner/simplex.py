r"""A linear program that grows by columns, solved by the simplex method, in the end exactly.

Maximise :math:`g \cdot x` such that :math:`A x \le b` and :math:`x \ge 0`, with :math:`b \ge 0`.
Each solution starts from the basis of the one before, which is what makes column generation
quick. Pivots are in floating point; the basis that they end at is then solved in fractions, which
gives the optimum and its prices without rounding.

Packings are highly degenerate: many resources are full at once. Capacities are raised by unlike
small parts, so that every step gains and none can be walked in circles (Charnes, 1952). The final
basis is the same, and the fractions know nothing of those parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from blinkrun.errors import InternalError
from blinkrun.planner.rational import solve_square

_Vector = NDArray[np.float64]

_TOLERANCE = 1e-9
_SMALL = 1e-6  # by which capacities are raised, relative
_TINY = 1e-9  # the same where vertices lie closer together
_REFRESH = 40  # pivots after which the inverse is made anew
_MAX_PIVOTS = 20_000
_ROOM = 64


@dataclass(frozen=True, slots=True)
class Vertex:
    """An optimal vertex in fractions: what each column carries, what each row is worth."""

    values: tuple[Fraction, ...]
    prices: tuple[Fraction, ...]


class Simplex:
    """The program and the basis that is optimal for the columns so far.

    Parameters
    ----------
    limits : sequence of int
        The right-hand side, not negative.
    scale : int
        Divides values in floating point; about as large as they are.
    """

    def __init__(self, limits: tuple[int, ...], scale: int) -> None:
        self.limits = limits
        self.columns: list[Mapping[int, int]] = []
        self.gains: list[int] = []
        self._scale = scale
        self._rows = np.array([scale / limit if limit else 1.0 for limit in limits])
        self._matrix = np.zeros((len(limits), _ROOM))
        self._gain = np.zeros(_ROOM)
        self._start(_SMALL)

    def add(self, column: Mapping[int, int], gain: int = 1) -> int:
        """Add a column, what it takes of each row and what it gains; return its number."""
        number = len(self.columns)
        if number == self._matrix.shape[1]:
            self._matrix = np.hstack([self._matrix, np.zeros_like(self._matrix)])
            self._gain = np.hstack([self._gain, np.zeros_like(self._gain)])
        for row, times in column.items():
            self._matrix[row, number] = times * self._rows[row]
        self._gain[number] = gain
        self.columns.append(column)
        self.gains.append(gain)
        return number

    def solve(self) -> float:
        """Make the basis optimal for all columns; return the gain, in units of the scale."""
        for _ in range(_MAX_PIVOTS):
            entering = self._entering()
            if entering is None:
                return float(self._basis_gains() @ self._basic_values())
            self._pivot(entering)
        raise InternalError(f"the packing program has not converged after {_MAX_PIVOTS} pivots")

    @property
    def prices(self) -> list[float]:
        """What one unit of each row is worth, not less than 0."""
        scaled = self._duals() * self._rows
        return [max(0.0, float(price)) for price in scaled]

    @property
    def values(self) -> list[float]:
        """What each column carries."""
        values = [0.0] * len(self.columns)
        for number, value in zip(self._basis, self._basic_values(), strict=True):
            if number >= 0:
                values[number] = max(0.0, float(value)) * self._scale
        return values

    def vertex(self) -> Vertex | None:
        """Return the optimum in fractions, or None if rounding has led to another basis."""
        found = self._exact()
        if found is None:
            self._start(_TINY)
            self.solve()
            found = self._exact()
        return found

    def _start(self, raised_by: float) -> None:
        """Begin anew, with limits that are each raised by another small part (golden section)."""
        size = len(self.limits)
        turns = np.arange(1, size + 1) * 0.6180339887498949
        base = np.array([1.0 if limit else 0.0 for limit in self.limits])
        self._raised: _Vector = base + raised_by * (1.0 + turns % 1.0)
        # column number, or -1 - row for what a row has left
        self._basis = [-1 - row for row in range(size)]
        self._inverse: _Vector = np.eye(size)
        self._since_refresh = 0

    def _basic_values(self) -> _Vector:
        values: _Vector = self._inverse @ self._raised
        return values

    def _basis_gains(self) -> _Vector:
        return np.array([self._gain[n] if n >= 0 else 0.0 for n in self._basis])

    def _duals(self) -> _Vector:
        duals: _Vector = self._basis_gains() @ self._inverse
        return duals

    def _entering(self) -> int | None:
        """Return the column (or -1 - row) that gains most per unit, or None at the optimum."""
        duals = self._duals()
        count = len(self.columns)
        reduced = self._gain[:count] - duals @ self._matrix[:, :count]
        best = int(np.argmax(reduced)) if count else -1
        row = int(np.argmin(duals))
        if count and reduced[best] >= max(-duals[row], _TOLERANCE):
            return best
        return -1 - row if -duals[row] > _TOLERANCE else None

    def _pivot(self, entering: int) -> None:
        inverse = self._inverse
        change = inverse @ self._matrix[:, entering] if entering >= 0 else inverse[:, -1 - entering]
        values = self._basic_values()
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(change > _TOLERANCE, values / change, np.inf)
        row = int(np.argmin(ratios))
        if not np.isfinite(ratios[row]):
            raise InternalError("the packing program has no bound")
        self._basis[row] = entering
        self._since_refresh += 1
        if self._since_refresh >= _REFRESH:
            self._refresh()
            return
        head = inverse[row] / change[row]
        self._inverse = inverse - np.outer(change, head)
        self._inverse[row] = head

    def _refresh(self) -> None:
        size = len(self.limits)
        square = np.zeros((size, size))
        for at, number in enumerate(self._basis):
            if number >= 0:
                square[:, at] = self._matrix[:, number]
            else:
                square[-1 - number, at] = 1.0
        self._inverse = np.linalg.inv(square)
        self._since_refresh = 0

    def _exact(self) -> Vertex | None:
        """Return the vertex of the present basis if it is feasible and optimal, exactly."""
        kept = sorted(number for number in self._basis if number >= 0)
        loose = {-1 - number for number in self._basis if number < 0}
        tight = [row for row in range(len(self.limits)) if row not in loose]
        square = [[self.columns[number].get(row, 0) for number in kept] for row in tight]
        carried = solve_square(square, [self.limits[row] for row in tight])
        worth = solve_square([*map(list, zip(*square, strict=True))], [self.gains[n] for n in kept])
        if carried is None or worth is None or min((*carried, *worth), default=0) < 0:
            return None
        values = [Fraction(0)] * len(self.columns)
        for number, value in zip(kept, carried, strict=True):
            values[number] = value
        prices = [Fraction(0)] * len(self.limits)
        for row, price in zip(tight, worth, strict=True):
            prices[row] = price
        vertex = Vertex(tuple(values), tuple(prices))
        return vertex if self._fits(vertex, kept) else None

    def _fits(self, vertex: Vertex, kept: list[int]) -> bool:
        """Whether no row is overrun and no column gains."""
        loads = [Fraction(0)] * len(self.limits)
        for number in kept:
            for row, times in self.columns[number].items():
                loads[row] += times * vertex.values[number]
        return all(load <= limit for load, limit in zip(loads, self.limits, strict=True)) and all(
            sum(times * vertex.prices[row] for row, times in column.items()) >= gain
            for column, gain in zip(self.columns, self.gains, strict=True)
        )
