"""Choices of ranks, without those that only swap what can be exchanged.

Ranks that can be swapped without anything else changing form a block, as GPUs do behind a switch.
Blocks that can be exchanged whole form larger ones: the pairs of GPUs under the PCIe switches of a
socket, the sockets, the hosts of a rack. Of a block's equal parts it matters only how much of each
kind is chosen, so that a rack of 72 GPUs has a few hundred ways to take eight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, product
from math import factorial, prod

from blinkrun.planner.symmetry import Shape, is_symmetry
from blinkrun.types import Rank

_Nesting = tuple[int, ...]  # how many parts a block has, how many each of these, and so on


@dataclass(frozen=True, slots=True)
class Block:
    """Ranks in parts that can be exchanged, or a single rank.

    Attributes
    ----------
    ranks : tuple of Rank
        In an order that goes over into that of an equal block when the two are exchanged.
    parts : tuple of Block
        Empty for a single rank.
    """

    ranks: tuple[Rank, ...]
    parts: tuple[Block, ...] = ()

    @property
    def nesting(self) -> _Nesting:
        """Return the number of parts at each depth; equal blocks have equal ones."""
        return (len(self.parts), *self.parts[0].nesting) if self.parts else ()


@dataclass(frozen=True, slots=True)
class Choice:
    """What is chosen of a block, up to exchanges.

    Attributes
    ----------
    size : int
        How many ranks.
    count : int
        How many choices of ranks this stands for.
    parts : tuple of Choice
        Of the parts, in no particular order of these; large ones first.
    """

    size: int
    count: int
    parts: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Orbit:
    """Choices that exchanges turn into one another."""

    blocks: tuple[Block, ...]
    choices: tuple[Choice, ...]

    @property
    def count(self) -> int:
        """How many they are."""
        return prod(choice.count for choice in self.choices)

    def members(self) -> Iterator[tuple[Rank, ...]]:
        """Yield them all, each with its ranks ascending."""
        yield from _places(self.blocks, self.choices)


def blocks_of(shape: Shape, alone: Rank | None = None) -> tuple[Block, ...]:
    """Return the largest blocks that exchanges build up; the rank `alone` stays on its own."""
    widths = _widths(shape)
    blocks = [Block((rank,)) for rank in range(shape.network.size)]
    while True:
        groups: list[list[Block]] = []
        for block in blocks:
            alike = (
                group
                for group in groups
                if alone not in (*group[0].ranks, *block.ranks)
                and _exchange(shape, widths, group[0], block)
            )
            found = next(alike, None)
            if found is None:
                groups.append([block])
            else:
                found.append(block)
        if len(groups) == len(blocks):
            return tuple(blocks)
        blocks = [_joined(group) for group in groups]


def orbits(blocks: Sequence[Block], count: int, alone: Rank | None = None) -> Iterator[Orbit]:
    """Yield every way to choose `count` ranks once, exchanges apart; `alone` is always chosen."""
    sizes = [len(block.ranks) for block in blocks]
    least = [int(block.ranks == (alone,)) for block in blocks]
    for taken in _numbers(count, sizes, least):
        ways = [_choices(block.nesting, size) for block, size in zip(blocks, taken, strict=True)]
        for choices in product(*ways):
            yield Orbit(tuple(blocks), choices)


def _joined(group: Sequence[Block]) -> Block:
    if len(group) == 1:
        return group[0]
    return Block(tuple(rank for block in group for rank in block.ranks), tuple(group))


_Widths = list[list[tuple[object, ...]]]


def _widths(shape: Shape) -> _Widths:
    """Return what joins each two ranks, without names."""
    size = shape.network.size
    between: list[list[list[object]]] = [[[] for _ in range(size)] for _ in range(size)]
    for parent, child, *rest in shape.arcs:
        between[parent][child].append(rest)
    return [[tuple(sorted(map(repr, items))) for items in row] for row in between]


def _exchange(shape: Shape, widths: _Widths, one: Block, other: Block) -> bool:
    """Whether exchanging two blocks, rank by rank, changes nothing else."""
    if one.nesting != other.nesting:
        return False
    ranks = list(range(shape.network.size))
    for a, b in zip(one.ranks, other.ranks, strict=True):
        ranks[a], ranks[b] = b, a
    # most pairs differ here already, which is cheaper to see
    moved = (*one.ranks, *other.ranks)
    if any(widths[a][b] != widths[ranks[a]][ranks[b]] for a in moved for b in range(len(ranks))):
        return False
    return is_symmetry(shape, tuple(ranks))


def _numbers(total: int, limits: Sequence[int], least: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield whole numbers with that sum, each between its least and its limit, high ones first.

    >>> list(_numbers(3, [2, 1, 2], [0, 1, 0]))
    [(2, 1, 0), (1, 1, 1), (0, 1, 2)]
    """
    if not limits:
        yield ()
        return
    low = max(least[0], total - sum(limits[1:]))
    high = min(limits[0], total - sum(least[1:]))
    for first in range(high, low - 1, -1):
        for others in _numbers(total - first, limits[1:], least[1:]):
            yield first, *others


@cache
def _choices(nesting: _Nesting, size: int) -> tuple[Choice, ...]:
    """Return the choices of so many ranks from a block.

    >>> [(choice.count, [part.size for part in choice.parts]) for choice in _choices((2, 2), 2)]
    [(2, [2, 0]), (4, [1, 1])]
    """
    if not nesting:
        return (Choice(size, 1),)
    many, inner = nesting[0], nesting[1:]
    most = min(size, prod(inner))
    options = [choice for part in range(most, -1, -1) for choice in _choices(inner, part)]
    found = []
    for parts in _sorted_sums(options, many, size):
        count = factorial(many)
        for choice, same in groupby(parts):
            times = len(list(same))
            count = count // factorial(times) * choice.count**times
        found.append(Choice(size, count, parts))
    return tuple(found)


def _sorted_sums(options: Sequence[Choice], many: int, size: int) -> Iterator[tuple[Choice, ...]]:
    """Yield `many` options, in their order and with repeats, that have `size` ranks together."""
    if not many:
        yield ()
        return
    for at, option in enumerate(options):
        if option.size <= size <= option.size * many:
            for others in _sorted_sums(options[at:], many - 1, size - option.size):
                yield option, *others


def _places(blocks: Sequence[Block], choices: Sequence[Choice]) -> Iterator[tuple[Rank, ...]]:
    """Yield the ranks that choices of blocks, one for each, may mean."""
    if not blocks:
        yield ()
        return
    for here in _inside(blocks[0], choices[0]):
        for others in _places(blocks[1:], choices[1:]):
            yield tuple(sorted((*here, *others)))


def _inside(block: Block, choice: Choice) -> Iterator[tuple[Rank, ...]]:
    if not block.parts:
        yield block.ranks[: choice.size]
        return
    for order in _orders(choice.parts):
        yield from _places(block.parts, order)


def _orders(parts: Sequence[Choice]) -> Iterator[tuple[Choice, ...]]:
    """Yield the different orders of some choices, the given one first."""
    if not parts:
        yield ()
        return
    for option in dict.fromkeys(parts):
        rest = list(parts)
        rest.remove(option)
        for others in _orders(rest):
            yield option, *others
