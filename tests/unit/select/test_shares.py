"""Shares by size: all trees end together, and late ones carry less or nothing."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from blinkrun.planner.make import FEW_SHARES
from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.select.shares import timed_shares

CASES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10**5)), min_size=1, max_size=8)


def packing_of(widths):
    total = sum(widths)
    trees, at = [], 0
    for width in widths:
        trees.append(PlannedTree(0, (-1, 0), at, at + width))
        at += width
    rate = Fraction(100 * total)
    return PlannedPacking(total, tuple(trees), rate, rate, "MB/s")


@given(case=CASES, size=st.integers(1, 10**8))
def test_all_trees_end_together(case, size):
    widths, delays = zip(*case, strict=True)
    even = packing_of(widths)
    timed = timed_shares(even, delays, size)
    assert timed.shares == FEW_SHARES
    assert sum(tree.stop - tree.start for tree in timed.trees) == FEW_SHARES
    assert timed.rate <= even.rate
    if len(timed.trees) == len(even.trees):
        rounding = Fraction(2, FEW_SHARES)  # of the data, at either end of a tree's part
        ends = []
        for tree, width, delay in zip(timed.trees, widths, delays, strict=True):
            part = Fraction(tree.stop - tree.start, FEW_SHARES)
            low, high = (delay + size * p * 10 / width for p in (part - rounding, part + rounding))
            ends.append((low, high))
        assert max(low for low, _ in ends) <= min(high for _, high in ends)


@given(widths=st.lists(st.integers(1, 50), min_size=2, max_size=8), size=st.integers(1, 10**8))
def test_equal_delays_change_nothing_but_the_rounding(widths, size):
    even = packing_of(widths)
    timed = timed_shares(even, [1000] * len(widths), size)
    for tree, width in zip(timed.trees, widths, strict=False):
        part = Fraction(tree.stop - tree.start, FEW_SHARES)
        if len(timed.trees) == len(widths):
            assert abs(part - Fraction(width, sum(widths))) <= Fraction(1, FEW_SHARES)


def test_a_tree_that_is_too_late_is_left_out():
    timed = timed_shares(packing_of([1, 1]), [0, 10**6], 1000)
    assert len(timed.trees) == 1
    assert timed.rate == 100
