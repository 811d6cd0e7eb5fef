"""Shares by size: all trees end together, and late ones carry less or nothing."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from blinkrun.paper.links import allocation
from blinkrun.planner.make import FEW_SHARES
from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.schedule.lower import lower_packing
from blinkrun.schedule.lower_builder import parts_of, shares_of
from blinkrun.select.candidates import candidates_for
from blinkrun.select.shares import levelled, timed_shares
from blinkrun.simulator.cost import FREE
from blinkrun.simulator.engine import simulate
from blinkrun.types import Collective

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


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.data())
def test_levelled_parts_follow_the_speeds_that_a_run_showed(widths, data):
    times = data.draw(st.lists(st.integers(1, 9), min_size=len(widths), max_size=len(widths)))
    level = levelled(packing_of(widths), times)
    total = sum(Fraction(w, t) for w, t in zip(widths, times, strict=True))
    assert sum(tree.stop - tree.start for tree in level.trees) == level.shares
    for tree, width, time in zip(level.trees, widths, times, strict=True):
        part = Fraction(tree.stop - tree.start, level.shares)
        assert abs(part - Fraction(width, time) / total) <= Fraction(1, level.shares)


def test_levelled_trees_of_a_run_end_closer_together_and_sooner():
    """Six GPUs of a DGX-1V, where even sharing of the links misses the rates that were meant."""
    topology = allocation("dgx-1v", [1, 2, 3, 4, 5, 7])
    packing = candidates_for(topology, Collective.BROADCAST)[0].packing

    def run_of(trees):
        program = lower_packing(trees, Collective.BROADCAST, channels_per_tree=4)
        return simulate(program, topology, size_bytes=10**8, chunk_bytes=1 << 16, cost=FREE)

    def ends_of(trees, run):
        ends = dict(run.ends_ns)
        parts = [parts_of(tree, trees, shares_of(trees, 4), 4) for tree in trees.trees]
        return [max(ends[part] for part in own) for own in parts]

    before = run_of(packing)
    after = levelled(packing, ends_of(packing, before))
    first, second = ends_of(packing, before), ends_of(after, run_of(after))
    assert max(first) == before.time_ns  # the last tree is the end of the run
    assert max(second) < max(first)
    assert max(second) - min(second) < max(first) - min(first)
