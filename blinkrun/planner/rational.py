"""From floating-point solutions of linear programs to exact fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Matrix = Sequence[Sequence[int]]
_EPSILON = 1e-7  # relative; solvers are asked for less


def round_fraction(value: float, max_denominator: int) -> Fraction:
    """Return the closest fraction, 0 for what is only noise.

    >>> round_fraction(0.42857142857, 1000), round_fraction(-1e-12, 1000)
    (Fraction(3, 7), Fraction(0, 1))
    """
    return max(Fraction(0), Fraction(value).limit_denominator(max_denominator))


def solve_exactly(rows: Matrix, rhs: Sequence[int]) -> list[Fraction] | None:
    """Return the x with ``rows @ x == rhs``, or None if there is none or more than one.

    Gauss-Jordan elimination in fractions; there may be more rows than unknowns.

    >>> solve_exactly([[2, 0], [0, 4], [2, 4]], [1, 1, 2])
    [Fraction(1, 2), Fraction(1, 4)]
    >>> solve_exactly([[1, 1]], [1]) is None
    True
    """
    work = [[Fraction(at) for at in (*row, right)] for row, right in zip(rows, rhs, strict=True)]
    unknowns = len(work[0]) - 1 if work else 0
    for column in range(unknowns):
        pivot = next((at for at in range(column, len(work)) if work[at][column]), None)
        if pivot is None:
            return None
        work[column], work[pivot] = work[pivot], work[column]
        head = work[column]
        factor = 1 / head[column]
        work[column] = head = [factor * at if at else at for at in head]
        for other, row in enumerate(work):
            if other != column and row[column]:
                times = row[column]
                work[other] = [
                    at - times * above if above else at for at, above in zip(row, head, strict=True)
                ]
    if any(row[-1] for row in work[unknowns:]):
        return None
    return [row[-1] for row in work[:unknowns]]


def exact_basis(
    rows: Matrix, rhs: Sequence[int], solution: Sequence[float], slack: Sequence[float]
) -> list[Fraction] | None:
    """Return the exact vertex of ``rows @ x <= rhs`` (or ``>=``) that is close to `solution`.

    Unknowns that are 0 stay 0; rows without slack hold with equality. None if they do not
    determine the rest.
    """
    scale = max(map(abs, solution), default=0.0) or 1.0
    support = [at for at, value in enumerate(solution) if value > _EPSILON * scale]
    tight = [at for at, value in enumerate(slack) if abs(value) < _EPSILON * max(1, abs(rhs[at]))]
    found = solve_exactly([[rows[r][c] for c in support] for r in tight], [rhs[r] for r in tight])
    if found is None or len(found) != len(support):
        return None
    exact = [Fraction(0)] * len(solution)
    for at, value in zip(support, found, strict=True):
        exact[at] = value
    return exact
