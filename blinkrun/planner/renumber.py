"""Trees of the same shape over ranks with other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.topology.hosts import FINE_UNIT
from blinkrun.types import Rank


def renumbered(packing: PlannedPacking, ranks: Sequence[Rank]) -> PlannedPacking:
    """Return a packing, in MB/s, whose rank r is called ``ranks[r]``.

    >>> from fractions import Fraction
    >>> tree = PlannedTree(root=0, parents=(-1, 0, 1), start=0, stop=1)
    >>> packing = PlannedPacking(1, (tree,), Fraction(1), Fraction(1), "MB/s")
    >>> renumbered(packing, [2, 0, 1]).trees[0].parents
    (2, 0, -1)
    """
    trees = [_renumbered(tree, ranks) for tree in packing.trees]
    if packing.joint:
        trees.sort(key=lambda tree: (tree.root, tree.start))
    scale = 1000 if packing.unit == FINE_UNIT else 1
    return replace(
        packing,
        trees=tuple(trees),
        rate=packing.rate / scale,
        bound=packing.bound / scale,
        unit="MB/s" if scale > 1 else packing.unit,
    )


def _renumbered(tree: PlannedTree, ranks: Sequence[Rank]) -> PlannedTree:
    size = len(ranks)
    parents, up, down = [-1] * size, [""] * size, [""] * size
    for child, parent in enumerate(tree.parents):
        if parent >= 0:
            at = ranks[child]
            parents[at] = ranks[parent]
            up[at], down[at] = tree.up[child], tree.down[child]
    return PlannedTree(
        ranks[tree.root], tuple(parents), tree.start, tree.stop, tuple(up), tuple(down)
    )
