"""The growing linear program: against scipy, exact in the end, and back again without a column."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from blinkrun.errors import InternalError
from blinkrun.planner import simplex
from blinkrun.planner.simplex import Simplex

LIMITS = st.lists(st.integers(1, 9) | st.integers(1000, 50_000), min_size=1, max_size=6)


@st.composite
def programs(draw, max_columns=8):
    """Limits and columns, each of which takes something."""
    limits = draw(LIMITS)
    rows = st.integers(0, len(limits) - 1)
    column = st.dictionaries(rows, st.integers(1, 3), min_size=1)
    return limits, draw(st.lists(column, min_size=1, max_size=max_columns))


def best(limits, columns):
    """The optimum by another solver."""
    matrix = np.zeros((len(limits), len(columns)))
    for at, column in enumerate(columns):
        for row, times in column.items():
            matrix[row, at] = times
    return -linprog(-np.ones(len(columns)), A_ub=matrix, b_ub=limits).fun


def program(limits, columns):
    made = Simplex(limits)
    for column in columns:
        made.add(column)
    return made


@settings(max_examples=40)
@given(programs())
def test_the_optimum_is_what_scipy_finds(case):
    made = program(*case)
    wanted = best(*case)
    assert made.solve() == pytest.approx(wanted, rel=1e-4)  # limits are raised by a little
    vertex = made.vertex()
    assert float(sum(vertex.values.values())) == pytest.approx(wanted, rel=1e-9)


@settings(max_examples=40)
@given(programs())
def test_a_vertex_fits_and_its_prices_prove_it(case):
    limits, columns = case
    vertex = program(*case).vertex()
    load = [0] * len(limits)
    for number, value in vertex.values.items():
        assert value >= 0
        for row, times in columns[number].items():
            load[row] += times * value
    assert all(taken <= limit for taken, limit in zip(load, limits, strict=True))
    assert all(sum(vertex.prices[r] * n for r, n in column.items()) >= 1 for column in columns)
    worth = sum(p * limit for p, limit in zip(vertex.prices, limits, strict=True))
    assert worth == sum(vertex.values.values())


@settings(max_examples=40)
@given(programs(), st.data())
def test_columns_can_come_and_go(case, data):
    limits, columns = case
    made = Simplex(limits)
    known = {}
    for column in columns:
        known[made.add(column)] = column
        made.solve()
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(known)))
            made.remove(gone)
            del known[gone]
    wanted = best(limits, list(known.values())) if known else 0
    assert made.solve() == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert set(made.values()) <= set(known)
    assert sum(made.vertex().values.values()) == pytest.approx(wanted)


def test_a_column_that_rounding_keeps_goes_all_the_same(monkeypatch):
    made = program([6, 4], [{0: 1}, {1: 1}])
    made.solve()
    monkeypatch.setattr(simplex, "_PENALTY", -1 + 1e-12)
    made.remove(0)
    assert made.solve() == pytest.approx(4, rel=1e-4)
    assert set(made.values()) == {1}


@settings(max_examples=20)
@given(programs())
def test_a_copy_is_apart(case):
    limits, columns = case
    made = program(limits, columns)
    before = made.solve()
    other = made.copy()
    other.add({0: 1})
    other.solve()
    other.remove(0)
    assert made.solve() == before
    assert made.vertex() == program(limits, columns).vertex()


@settings(max_examples=20)
@given(programs())
def test_first_steps_gain_no_more_than_the_whole_way(case):
    limits, (first, *others) = case
    made = program(limits, [first])
    start = made.solve()
    assert len(made.steps(others)) == len(others)
    for step, other in zip(made.steps(others), others, strict=True):
        assert start + step <= best(limits, [first, other]) * (1 + 1e-4)


def test_many_columns_find_room():
    made = program([60_000], [{0: times} for times in range(1, 100)])
    assert made.vertex().values == {0: 60_000}


def test_a_gain_without_limit_is_our_own_error():
    made = Simplex([1])
    made.add({})
    with pytest.raises(InternalError, match="no bound"):
        made.solve()


def test_endless_pivots_are_our_own_error(monkeypatch):
    monkeypatch.setattr(simplex, "_MAX_PIVOTS", 1)
    made = program([1, 1], [{0: 1}, {1: 1}])
    with pytest.raises(InternalError, match="not converged after 1 pivots"):
        made.solve()


def test_limits_closer_together_than_they_are_raised_are_tried_again():
    # which of the two rows is full differs by less than the first raise
    limits = [10**7 + 1, 10**7]
    vertex = program(limits, [{0: 1, 1: 1}]).vertex()
    assert (vertex.values, vertex.prices) == ({0: 10**7}, (0, 1))


@pytest.mark.parametrize("found", [None, [Fraction(-1)], [Fraction(5)]])
def test_what_is_no_vertex_is_not_returned(monkeypatch, found):
    monkeypatch.setattr(simplex, "solve_square", lambda *_args: found)
    assert program([2], [{0: 1}]).vertex() is None


def test_a_column_that_would_still_gain_is_seen():
    made = program([2, 2], [{0: 1}])
    made.solve()
    vertex = made.vertex()
    made.add({1: 1})  # not solved again
    assert not made._holds(vertex)
