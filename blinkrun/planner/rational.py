"""Linear equations in whole numbers, solved in fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt

Matrix = Sequence[Sequence[int]]
_PRIMES = (2**127 - 1, 2**521 - 1, 2**2203 - 1)  # Mersenne; the first is enough for most


def solve_square(rows: Matrix, rhs: Sequence[int]) -> list[Fraction] | None:
    """Return the x with ``rows @ x == rhs``, or None where there is not exactly one.

    Elimination modulo a prime, in which numbers do not grow; the fractions that the remainders
    stand for are found by Euclid's algorithm [1]_ and put in to see that they solve the rows. Where
    they do not, they are too long for the prime, and the next one is taken.

    References
    ----------
    .. [1] P. S. Wang, "A p-adic algorithm for univariate partial fractions", SYMSAC 1981.

    Examples
    --------
    >>> solve_square([[2, 1], [0, 4]], [1, 1])
    [Fraction(3, 8), Fraction(1, 4)]
    >>> solve_square([[1, 1], [2, 2]], [1, 2]) is None
    True
    """
    for prime in _PRIMES:
        remainders = _eliminate(rows, rhs, prime)
        if remainders is None:
            return None
        found = [_fraction_of(value, prime) for value in remainders]
        if _solves(rows, rhs, found):
            return found
    return None


def _solves(rows: Matrix, rhs: Sequence[int], found: Sequence[Fraction]) -> bool:
    return all(
        sum((times * value for times, value in zip(row, found, strict=True) if times), Fraction(0))
        == right
        for row, right in zip(rows, rhs, strict=True)
    )


def _eliminate(rows: Matrix, rhs: Sequence[int], prime: int) -> list[int] | None:
    """Return the solution modulo `prime`, None if the rows do not determine it.

    The row with fewest entries comes first: most rows of a packing are short and stay so.
    """
    waiting = [
        ({at: value % prime for at, value in enumerate(row) if value}, right % prime)
        for row, right in zip(rows, rhs, strict=True)
    ]
    done: list[tuple[int, dict[int, int], int]] = []
    while waiting:
        shortest = min(range(len(waiting)), key=lambda at: len(waiting[at][0]))
        head, right = waiting.pop(shortest)
        if not head:
            return None
        pivot = min(head)
        factor = pow(head.pop(pivot), -1, prime)
        head = {at: value * factor % prime for at, value in head.items()}
        right = right * factor % prime
        done.append((pivot, head, right))
        for at, (row, other) in enumerate(waiting):
            times = row.pop(pivot, 0)
            if times:
                for column, value in head.items():
                    left = (row.get(column, 0) - times * value) % prime
                    if left:
                        row[column] = left
                    else:
                        row.pop(column, None)
                waiting[at] = row, (other - times * right) % prime
    solution = [0] * len(rows)
    for pivot, head, right in reversed(done):
        solution[pivot] = (right - sum(v * solution[at] for at, v in head.items())) % prime
    return solution


def _fraction_of(remainder: int, prime: int) -> Fraction:
    """Return the fraction with small terms that leaves `remainder` modulo `prime`."""
    limit = isqrt(prime // 2)
    above, below = (prime, 0), (remainder, 1)
    while below[0] > limit:
        times = above[0] // below[0]
        above, below = below, (above[0] - times * below[0], above[1] - times * below[1])
    return Fraction(*below)
