"""The best single ring over links that share resources, such as PCIe.

A ring's width is what every hop can carry while all hops are busy. Finding the order with the
widest ring is a bottleneck travelling-salesman problem; PCIe trees make it easy: walking the tree
depth first is nearly always best. So one ring is grown from every rank along the widest and
shortest hop, improved by turning parts of it round, and compared with a bound: the widest w at
which links of width w still join all ranks both ways. Where the bound is not met, up to 8 ranks
are searched completely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise

from blinkrun.planner.cycles import Order
from blinkrun.topology.graph import Link
from blinkrun.types import Rank

_SEARCHED = 8  # ranks up to which all orders are tried


@dataclass(frozen=True, slots=True)
class Hops:
    """The link that a ring takes from one rank to another, and what links share.

    Attributes
    ----------
    size : int
        Number of ranks, at least 2.
    links : mapping of (src, dst) to Link
        At most one per pair of ranks.
    capacity : mapping of str to int
        Of the resources that `links` take.
    """

    size: int
    links: Mapping[tuple[Rank, Rank], Link]
    capacity: Mapping[str, int]

    def width(self, order: Order) -> Fraction:
        """Return what all hops of a ring carry at once; 0 if one has no link."""
        hops = list(zip(order, (*order[1:], order[0]), strict=True))
        if any(hop not in self.links for hop in hops):
            return Fraction(0)
        return self._width([self.links[hop] for hop in hops])

    def path_width(self, path: Sequence[Rank]) -> Fraction:
        """Return the same for an open path of linked ranks."""
        return self._width([self.links[hop] for hop in pairwise(path)])

    def bound(self) -> int:
        """Return what no ring exceeds; 0 if the links join the ranks in no ring at all."""
        widths = {pair: self._alone(link) for pair, link in self.links.items()}
        for width in sorted(set(widths.values()), reverse=True):
            wide = [pair for pair in widths if widths[pair] >= width]
            if _reaches_all(self.size, wide) and _reaches_all(self.size, [(b, a) for a, b in wide]):
                return width
        return 0

    def by_width(self, path: Sequence[Rank]) -> list[tuple[Rank, Fraction]]:
        """Return where `path` may go next, and its width then; wide and short hops first."""
        found = [
            (rank, self.path_width((*path, rank)))
            for rank in range(self.size)
            if rank not in path and (path[-1], rank) in self.links
        ]
        taken = {rank: len(self.links[path[-1], rank].resources) for rank, _ in found}
        return sorted(found, key=lambda item: (-item[1], taken[item[0]], item[0]))

    def _width(self, links: Sequence[Link]) -> Fraction:
        takes = Counter(name for link in links for name in link.resources)
        return min(Fraction(self.capacity[name], times) for name, times in takes.items())

    def _alone(self, link: Link) -> int:
        return min(self.capacity[name] for name in link.resources)


def best_ring(hops: Hops) -> tuple[Order, Fraction, bool]:
    """Return the widest ring, its width, and whether it is proven that none is wider.

    The order is empty and the width 0 where no ring was found.
    """
    bound = hops.bound()
    best: Order = ()
    width = Fraction(0)
    for start in range(hops.size if bound else 0):
        order = _grown(hops, start)
        if hops.width(order) < bound:
            order = _improved(hops, order)
        if hops.width(order) > width:
            best, width = order, hops.width(order)
        if width == bound:
            break
    if width < bound and hops.size <= _SEARCHED:
        best, width = _searched(hops, best, width)
    return best, width, width == bound or hops.size <= _SEARCHED


def _grown(hops: Hops, start: Rank) -> Order:
    """Return an order of all ranks that follows the best hop each time, as far as there is one."""
    path = [start]
    while len(path) < hops.size:
        near = hops.by_width(path)
        missing = (rank for rank in range(hops.size) if rank not in path)
        path.append(near[0][0] if near else next(missing))
        if not near:
            return (*path, *missing)
    return tuple(path)


def _improved(hops: Hops, order: Order) -> Order:
    """Return the order after turning parts of it round for as long as that widens it (2-opt)."""
    while True:
        width = hops.width(order)
        turned = (
            (*order[:low], *reversed(order[low:high]), *order[high:])
            for low, high in combinations(range(1, hops.size + 1), 2)
        )
        better = next((other for other in turned if hops.width(other) > width), None)
        if better is None:
            return order
        order = better


def _searched(hops: Hops, best: Order, width: Fraction) -> tuple[Order, Fraction]:
    """Return the widest of all rings, leaving out paths that are no wider than what is known."""
    stack: list[Order] = [(0,)]
    while stack:
        path = stack.pop()
        if len(path) == hops.size:
            if hops.width(path) > width:
                best, width = path, hops.width(path)
            continue
        near = [rank for rank, wide in hops.by_width(path) if wide > width]
        stack += [(*path, rank) for rank in reversed(near)]
    return best, width


def _reaches_all(size: int, pairs: Sequence[tuple[Rank, Rank]]) -> bool:
    reached = {0}
    grown = True
    while grown:
        new = {dst for src, dst in pairs if src in reached} - reached
        reached |= new
        grown = bool(new)
    return len(reached) == size
