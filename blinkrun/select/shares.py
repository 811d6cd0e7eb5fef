"""Shares of the data by size: deep and slow trees, which are late to deliver, carry less.

A tree that its first chunk takes longer to run through has less time left to move data at its
rate. Where all trees are to be through at the same time T, a tree with rate x and such a delay d
carries x (T - d), and nothing if T comes before d. T is where that makes up all data:

    size = sum over trees of x max(0, T - d)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from blinkrun.planner.make import FEW_SHARES
from blinkrun.planner.plan import PlannedPacking


def timed_shares(
    packing: PlannedPacking, delays_ns: Sequence[int], size_bytes: int
) -> PlannedPacking:
    """Return the packing with shares that let all trees end together, for one size.

    Parameters
    ----------
    packing : PlannedPacking
        In MB/s, with trees that all carry data at its rate; not of all roots.
    delays_ns : sequence of int
        Of each tree: what its chunks need for the longest way.
    size_bytes : int
        Of the collective.

    Returns
    -------
    PlannedPacking
        Trees that are too late to be of use are left out. Its rate is what its shares allow at
        the rates that the trees had.

    Examples
    --------
    Two trees of 1 GB/s, one of them 2 us late, and 10 KB:

    >>> from blinkrun.planner.plan import PlannedTree
    >>> trees = (PlannedTree(0, (-1, 0), 0, 1), PlannedTree(0, (-1, 0), 1, 2))
    >>> rate = Fraction(2000)
    >>> even = PlannedPacking(2, trees, rate, rate, "MB/s")
    >>> late = timed_shares(even, [0, 2000], 10_000)
    >>> [Fraction(tree.stop - tree.start, late.shares) for tree in late.trees]
    [Fraction(2457, 4096), Fraction(1639, 4096)]
    """
    parts = [Fraction(tree.stop - tree.start, packing.shares) for tree in packing.trees]
    end_ns = _end_ns(packing.rate, parts, delays_ns, size_bytes)
    moved = [
        part * max(Fraction(0), end_ns - delay)
        for part, delay in zip(parts, delays_ns, strict=True)
    ]
    return _shared(packing, parts, moved, FEW_SHARES)


def levelled(packing: PlannedPacking, times_ns: Sequence[int]) -> PlannedPacking:
    """Return the packing with more data for trees that were through early, and less for late ones.

    Links grant a channel what the others leave it, which no formula tells to the last per cent. A
    run does: a tree that was through after `times_ns` moved its part at that speed. With parts in
    proportion to these speeds all would be through together, were the speeds to stay as they are;
    they nearly do, so a few rounds come close.

    Parameters
    ----------
    packing : PlannedPacking
        Not of all roots.
    times_ns : sequence of int
        From the start of the channels to the end of each tree; at least 1.

    Returns
    -------
    PlannedPacking
        Its rate is what its shares allow at the rates that the trees had.

    Examples
    --------
    >>> from blinkrun.planner.plan import PlannedTree
    >>> trees = (PlannedTree(0, (-1, 0), 0, 1), PlannedTree(0, (-1, 0), 1, 2))
    >>> even = PlannedPacking(2, trees, Fraction(2000), Fraction(2000), "MB/s")
    >>> level = levelled(even, [100, 300])
    >>> [Fraction(tree.stop - tree.start, level.shares) for tree in level.trees]
    [Fraction(3, 4), Fraction(1, 4)]
    """
    parts = [Fraction(tree.stop - tree.start, packing.shares) for tree in packing.trees]
    speeds = [part / max(1, time) for part, time in zip(parts, times_ns, strict=True)]
    return _shared(packing, parts, speeds, FEW_SHARES << 4)


def _shared(
    packing: PlannedPacking, parts: Sequence[Fraction], amounts: Sequence[Fraction], shares: int
) -> PlannedPacking:
    """Return the packing with parts in proportion to `amounts`; trees without any are left out."""
    total = sum(amounts, Fraction(0))
    trees = []
    at = 0
    rate = packing.bound
    reached = Fraction(0)
    for tree, part, amount in zip(packing.trees, parts, amounts, strict=True):
        reached += amount
        stop = int(reached * shares / total)
        if stop > at:
            trees.append(replace(tree, start=at, stop=stop))
            rate = min(rate, packing.rate * part * shares / (stop - at))
            at = stop
    return replace(packing, shares=shares, trees=tuple(trees), rate=rate)


def _end_ns(
    rate: Fraction, parts: Sequence[Fraction], delays_ns: Sequence[int], size_bytes: int
) -> Fraction:
    """Return when all trees end that have begun by then; MB/s are bytes per 1000 ns."""
    end = Fraction(0)
    width = Fraction(0)
    late = Fraction(0)
    for part, delay in sorted(zip(parts, delays_ns, strict=True), key=lambda entry: entry[1]):
        if width and delay >= end:
            break
        width += rate * part / 1000
        late += rate * part / 1000 * delay
        end = (size_bytes + late) / width
    return end
