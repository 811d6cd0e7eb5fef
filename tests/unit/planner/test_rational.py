"""Linear equations in whole numbers: exact solutions, of any length."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blinkrun.planner import rational
from blinkrun.planner.rational import solve_square

SMALL = st.integers(-4, 4)
LARGE = st.integers(-(10**12), 10**12)


@settings(max_examples=60)
@given(st.data(), st.integers(0, 5), st.sampled_from([SMALL, LARGE]))
def test_what_is_found_solves_the_rows(data, size, numbers):
    row = st.lists(numbers, min_size=size, max_size=size)
    rows = data.draw(st.lists(row, min_size=size, max_size=size))
    rhs = data.draw(row)
    found = solve_square(rows, rhs)
    if found is None:
        assert determinant(rows) == 0
    else:
        assert [sum(a * x for a, x in zip(r, found, strict=True)) for r in rows] == rhs


def determinant(rows):
    if not rows:
        return 1
    (first, *others) = rows
    return sum(
        (-1) ** at * value * determinant([row[:at] + row[at + 1 :] for row in others])
        for at, value in enumerate(first)
    )


@pytest.mark.parametrize(
    ("rows", "rhs"), [([[1, 1], [2, 2]], [1, 2]), ([[1, 1], [2, 2]], [1, 3]), ([[0]], [0])]
)
def test_rows_that_leave_something_open_or_contradict_each_other(rows, rhs):
    assert solve_square(rows, rhs) is None


def test_fractions_too_long_for_one_prime_are_found_with_the_next():
    high = 10**30 + 57
    assert solve_square([[high, 1], [0, high]], [1, 1]) == [
        Fraction(high - 1, high * high),
        Fraction(1, high),
    ]


def test_fractions_too_long_for_all_primes_are_not_made_up(monkeypatch):
    monkeypatch.setattr(rational, "_PRIMES", (101,))
    assert solve_square([[1000]], [999]) is None
