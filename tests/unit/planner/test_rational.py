"""Exact fractions from floating-point solutions."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blinkrun.planner.rational import exact_basis, round_fraction, solve_exactly

SMALL = st.integers(-4, 4)


@settings(max_examples=60)
@given(st.data(), st.integers(1, 4))
def test_a_unique_solution_is_found_and_others_are_not_invented(data, size):
    rows = data.draw(st.lists(st.lists(SMALL, min_size=size, max_size=size), min_size=1))
    wanted = data.draw(st.lists(SMALL, min_size=size, max_size=size))
    rhs = [sum(a * x for a, x in zip(row, wanted, strict=True)) for row in rows]
    found = solve_exactly(rows, rhs)
    assert found is None or found == wanted
    identity = [[int(at == other) for other in range(size)] for at in range(size)]
    assert solve_exactly([*rows, *identity], [*rhs, *wanted]) == wanted


def test_contradicting_rows_have_no_solution():
    assert solve_exactly([[1], [1]], [1, 2]) is None


def test_nothing_to_solve():
    assert solve_exactly([], []) == []


@pytest.mark.parametrize(
    ("value", "rounded"), [(1 / 3, Fraction(1, 3)), (-1e-9, 0), (0.0, 0), (2.0, 2)]
)
def test_rounding(value, rounded):
    assert round_fraction(value, 1000) == rounded


def test_a_vertex_is_recovered_from_its_neighbourhood():
    # x + y <= 1, 3x <= 1: the vertex (1/3, 2/3); the third unknown is 0
    found = exact_basis(
        [[1, 1, 5], [3, 0, 1]], [1, 1], [0.333333333, 0.66666667, 0.0], [0.0, 1e-12]
    )
    assert found == [Fraction(1, 3), Fraction(2, 3), 0]


def test_a_point_inside_is_no_vertex():
    assert exact_basis([[1, 1]], [1], [0.5, 0.5], [0.0]) is None
    assert exact_basis([[1]], [1], [0.5], [0.5]) is None
