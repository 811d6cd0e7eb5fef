r"""Trees at the rates that links grant by themselves.

A packing gives every tree a rate of its own; links know nothing of it. They share what they carry
evenly between the transfers in flight, so a tree that was to have a tenth of a link gets half of
it, is through early, and holds back the others meanwhile: of the packing's rate a quarter may be
lost. What can be chosen is how many channels a tree has, each with an equal claim to every link
on its way. Given these numbers :math:`n_t`, even sharing ends at the max-min fair rates [1]_:

    raise the rate of all channels together; where a link is full, those that cross it stay as they
    are; go on with the others until all stay.

Every tree then carries the part of the data that its rate is of the total, so that all are through
at the same time and nothing is lost. The numbers are looked for by steps of one channel, from
those in proportion to the packing's rates.

References
----------
.. [1] D. Bertsekas, R. Gallager, "Data Networks", 1992, section 6.5.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from blinkrun.errors import PlanError
from blinkrun.planner.packing import Packing, Tree
from blinkrun.topology.graph import Topology

_LOOKS = 3000  # numbers of channels that are tried, at most
_GAIN = 1 + 1e-4  # below, one more channel is not worth it

Uses = npt.NDArray[np.int64]  # resource by tree: how often the tree takes it


def fair_packing(topology: Topology, packings: Sequence[Packing], *, most_channels: int) -> Packing:
    """Return trees of `packings` at max-min fair rates, one entry per channel.

    Parameters
    ----------
    topology : Topology
    packings : sequence of Packing
        Of one flow and root. The search starts from each of them; the best end is kept.
    most_channels : int
        Entries at most; of allgather and reducescatter, for each root.

    Returns
    -------
    Packing
        A tree stands in it as many times as it has channels, all at the same rate. Passes
        `check_packing`.

    Raises
    ------
    PlanError
        If there are no packings, or less than one channel.

    Examples
    --------
    Two trees share a link, in the proportion of five to three:

    >>> from blinkrun.planner.packing import Edge, Flow
    >>> from blinkrun.topology.graph import Link, LinkKind, Resource
    >>> link = lambda src, dst, name: Link(src, dst, (name,), LinkKind.NVLINK)
    >>> links = (link(0, 1, "a"), link(0, 2, "b"), link(1, 2, "c"))
    >>> capacity = (Resource("a", 8), Resource("b", 5), Resource("c", 3))
    >>> three = Topology("three", (0, 1, 2), links, capacity, "lane")
    >>> star = Tree(0, (Edge(0, 1, (0,)), Edge(0, 2, (1,))))
    >>> chain = Tree(0, (Edge(0, 1, (0,)), Edge(1, 2, (2,))))
    >>> planned = Packing(Flow.DOWN, 0, (star, chain), (Fraction(5), Fraction(3)))
    >>> fair = fair_packing(three, [planned], most_channels=8)
    >>> fair.rate, fair.trees.count(star), fair.trees.count(chain)
    (Fraction(8, 1), 5, 3)
    """
    if not packings or most_channels < 1:
        raise PlanError(f"{len(packings)} packings for {most_channels} channels")
    trees = list(dict.fromkeys(tree for packing in packings for tree in packing.trees))
    search = _Search(topology, trees, most_channels, is_joint=packings[0].flow.is_joint)
    found = [search.climb(_proportional(packing, trees, most_channels)) for packing in packings]
    _, numbers = max(found, key=lambda end: (end[0], -sum(end[1])))
    rates = search.exact(numbers)
    entries = [
        (tree, rate)
        for tree, rate, number in zip(trees, rates, numbers, strict=True)
        for _ in range(number)
    ]
    entries.sort(key=lambda entry: entry[0].root)
    first = packings[0]
    return Packing(
        first.flow, first.root, tuple(tree for tree, _ in entries), tuple(r for _, r in entries)
    )


class _Search:
    """The trees to choose from, and what they take."""

    def __init__(
        self, topology: Topology, trees: Sequence[Tree], most: int, *, is_joint: bool
    ) -> None:
        uses = [_use(topology, tree) for tree in trees]
        taken = [part for part in topology.resources if any(part.name in use for use in uses)]
        self.capacity = [part.capacity for part in taken]
        self.uses: Uses = np.array([[use[part.name] for use in uses] for part in taken], np.int64)
        roots = sorted({tree.root for tree in trees}) if is_joint else [-1]
        self.groups = [
            [at for at, tree in enumerate(trees) if root in (-1, tree.root)] for root in roots
        ]
        self.most = most
        self.looks = 0

    def climb(self, numbers: list[int]) -> tuple[float, list[int]]:
        """Return the best numbers of channels that are reached by steps of one, and their rate."""
        self.looks = _LOOKS
        best = self.rate(numbers)
        while True:
            start = best
            for step in self._steps(numbers):
                rate = self.rate(step)
                if rate > best * (_GAIN if sum(step) > sum(numbers) else 1):
                    best, numbers = rate, step
            if best == start or self.looks <= 0:
                return best, numbers

    def _steps(self, numbers: list[int]) -> Iterator[list[int]]:
        """Yield what one channel more or less makes of the best numbers at the time."""
        for group in self.groups:
            for at in group:
                for more in (1, -1):
                    step = list(numbers)
                    step[at] += more
                    if step[at] >= 0 and 0 < sum(step[other] for other in group) <= self.most:
                        yield step

    def rate(self, numbers: Sequence[int]) -> float:
        """Return the total rate of so many channels: of all roots, as much as of the slowest."""
        self.looks -= 1
        left = np.array(self.capacity, float)
        count = np.array(numbers, float)
        rates = np.zeros(len(numbers))
        going = count > 0
        while going.any():
            load = self.uses @ (count * going)
            crossed = load > 0
            rise = (left[crossed] / load[crossed]).min()
            rates[going] += rise
            left -= load * rise
            full = crossed & (left <= 1e-9 * np.array(self.capacity))
            going &= ~self.uses[full].any(axis=0)
        total = rates * count
        return len(self.groups) * float(min(total[group].sum() for group in self.groups))

    def exact(self, numbers: Sequence[int]) -> list[Fraction]:
        """Return the rate of a channel of every tree, exactly; of all roots equally much."""
        left = [Fraction(capacity) for capacity in self.capacity]
        rates = [Fraction(0)] * len(numbers)
        going = {at for at, number in enumerate(numbers) if number}
        while going:
            load = [sum(int(row[at]) * numbers[at] for at in going) for row in self.uses]
            rise = min(room / load for room, load in zip(left, load, strict=True) if load)
            left = [room - taken * rise for room, taken in zip(left, load, strict=True)]
            full = [at for at, room in enumerate(left) if load[at] and not room]
            for at in going:
                rates[at] += rise
            going -= {at for at in going if any(self.uses[row][at] for row in full)}
        totals = [sum(rates[at] * numbers[at] for at in group) for group in self.groups]
        least = min(totals)
        for group, total in zip(self.groups, totals, strict=True):
            for at in group:
                rates[at] *= Fraction(least, total)
        return rates


def _use(topology: Topology, tree: Tree) -> Counter[str]:
    """Return how often a tree takes each resource."""
    return Counter(
        name
        for edge in tree.edges
        for index in edge.links
        for name in topology.links[index].resources
    )


def _proportional(packing: Packing, trees: Sequence[Tree], most: int) -> list[int]:
    """Return at most about `most` channels in proportion to the rates, none for thin trees."""
    rates = dict.fromkeys(trees, Fraction(0))
    for tree, rate in zip(packing.trees, packing.rates, strict=True):
        rates[tree] += rate
    totals = packing.rates_by_root() if packing.flow.is_joint else {}
    numbers = [
        int(rate * most / totals.get(tree.root, packing.rate)) for tree, rate in rates.items()
    ]
    thickest = {tree.root: tree for tree in sorted(trees, key=lambda tree: rates[tree])}
    if not packing.flow.is_joint:
        thickest = {0: max(trees, key=lambda tree: rates[tree])}
    for tree in thickest.values():
        at = list(trees).index(tree)
        numbers[at] = max(1, numbers[at])
    return numbers
