"""The tree that a channel serves, as the program shows it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from blinkrun.schedule.ir import Program, Reduce, Send, Signal, Step, Wait
from blinkrun.schedule.streams import Stream, stream_of
from blinkrun.types import Collective, Rank

Place = tuple[Rank, int]  # rank and the number of a channel of it
_Tie = tuple[Rank, int] | Stream
Weight = Mapping[frozenset[Rank], int]  # of pairs of ranks


@dataclass(frozen=True, slots=True)
class SeenTree:
    """What carries a part of the data.

    Attributes
    ----------
    channels : frozenset of (Rank, int)
        All that serve it.
    depth : int
        Hops from the root to the farthest rank.
    path : tuple of int
        Ranks from the root to a leaf, or back from where the last turned round.
    """

    channels: frozenset[Place]
    depth: int
    path: tuple[Rank, ...]


def tree_of(program: Program, place: Place, weight: Weight) -> SeenTree:
    """Return the tree that a channel serves, with the path of the largest sum of weights.

    The root is where data starts, ends or turns round; of equal paths the longest is taken, then
    that to the lowest ranks.
    """
    channels = _tied(program, place)
    below: dict[Rank, set[Rank]] = defaultdict(set)
    finals: set[Rank] = set()
    for rank, number in channels:
        for step in program.ranks[rank].channels[number].steps:
            if isinstance(step, Reduce) and step.final:
                finals.add(rank)
            for src, dst in _moves(step, rank):
                up, down = (dst, src) if _is_upwards(program.collective) else (src, dst)
                below[up].add(down)
    paths = _paths(_root(program, finals, below, place[0]), below)

    def importance(path: tuple[Rank, ...]) -> tuple[int, int]:
        return sum(weight.get(frozenset(pair), 0) for pair in pairwise(path)), len(path)

    return SeenTree(channels, max(map(len, paths)) - 1, max(paths, key=importance))


def _tied(program: Program, place: Place) -> frozenset[Place]:
    """Return the channels that wait for one another, or exchange messages, directly or not."""
    users: dict[_Tie, list[Place]] = defaultdict(list)
    ties: dict[Place, list[_Tie]] = defaultdict(list)
    for rank, own in enumerate(program.ranks):
        for number, channel in enumerate(own.channels):
            for step in channel.steps:
                key = _tie(step, rank)
                if key is not None:
                    users[key].append((rank, number))
                    ties[rank, number].append(key)
    found = {place}
    queue = deque([place])
    while queue:
        for key in ties[queue.popleft()]:
            for other in users[key]:
                if other not in found:
                    found.add(other)
                    queue.append(other)
    return frozenset(found)


def _tie(step: Step, rank: Rank) -> _Tie | None:
    """Return the flag or the stream that a step of `rank` uses."""
    match step:
        case Wait(peer, flag):
            return peer, flag
        case Signal(flag):
            return rank, flag
        case Reduce():
            return None
    return stream_of(rank, step)


def _moves(step: Step, rank: Rank) -> Iterator[tuple[Rank, Rank]]:
    """Yield from whom to whom a step of `rank` moves data."""
    if isinstance(step, Reduce):
        yield from ((src, dst) for src, dst, _ in step.moves(rank))
    elif isinstance(step, Send):
        yield rank, step.rank


def _root(program: Program, finals: set[Rank], below: Mapping[Rank, set[Rank]], rank: Rank) -> Rank:
    """Return the tree's root; `rank` where none stands out."""
    if program.collective.is_rooted:
        return program.root
    if finals:
        return min(finals)
    fed = {child for children in below.values() for child in children}
    return min((up for up in below if up not in fed), default=rank)


def _is_upwards(collective: Collective) -> bool:
    return collective in (Collective.REDUCE, Collective.REDUCESCATTER)


def _paths(root: Rank, below: Mapping[Rank, set[Rank]]) -> list[tuple[Rank, ...]]:
    """Return the shortest ways from `root` to all ranks, nearer ones first."""
    paths: dict[Rank, tuple[Rank, ...]] = {root: (root,)}
    queue = deque([root])
    while queue:
        rank = queue.popleft()
        for child in sorted(below.get(rank, ())):
            if child not in paths:
                paths[child] = (*paths[rank], child)
                queue.append(child)
    return list(paths.values())
