"""Fair sharing: what each transfer in flight gets of the resources that it holds.

Max-min fair [1]_: all rates rise together until a resource is full, those that cross it stay, the
others rise on. Transfers over the same resources are interchangeable, so rates are found for
*pipes* (a set of resources) with so many transfers each, not for transfers.

Rates are whole numbers: MB/s times `SCALE`, rounded down. `SCALE` is a multiple of all small
numbers and their products, so that the usual shares are exact.

References
----------
.. [1] D. Bertsekas and R. Gallager, "Data Networks", 2nd ed., 1992, section 6.5.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace

SCALE = 720_720**2  # 1 to 16 divide 720720; squared, for shares of what others left


def max_min_rates(
    capacities: Sequence[int], pipes: Sequence[Sequence[int]], counts: Sequence[int]
) -> tuple[int, ...]:
    """Return the rate of one transfer of every pipe, in MB/s times `SCALE`; 0 where there is none.

    Parameters
    ----------
    capacities : sequence of int
        Of the resources, in MB/s.
    pipes : sequence of sequence of int
        The resources that each pipe takes.
    counts : sequence of int
        Transfers in flight in each pipe.

    Examples
    --------
    Two transfers share resource 0; one of them is held back to 2 by resource 1:

    >>> [rate // SCALE for rate in max_min_rates([10, 2], [[0], [0, 1]], [1, 1])]
    [8, 2]
    """
    left = [capacity * SCALE for capacity in capacities]
    load = [0] * len(capacities)
    users: list[list[int]] = [[] for _ in capacities]
    for pipe, count in enumerate(counts):
        if count:
            for at in pipes[pipe]:
                load[at] += count
                users[at].append(pipe)
    rates = [0] * len(pipes)
    # Where others stay, what is left for each of the rest only grows: old levels are lower bounds.
    levels = [(left[at] // load[at], at) for at in range(len(left)) if load[at]]
    heapify(levels)
    while levels:
        level, at = levels[0]
        if not load[at]:
            heappop(levels)
        elif left[at] // load[at] > level:
            heapreplace(levels, (left[at] // load[at], at))
        else:
            heappop(levels)
            for pipe in users[at]:
                if not rates[pipe]:
                    rates[pipe] = level
                    for other in pipes[pipe]:
                        left[other] -= level * counts[pipe]
                        load[other] -= counts[pipe]
    return tuple(rates)


def without_idle(
    capacities: Sequence[int], pipes: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Return the pipes without the resources that never hold anything back.

    That is a resource all of whose pipes take others, that remain, with no more capacity than it
    has, all together. Rates without it fit it as well, and max-min fair rates are unique.

    >>> without_idle([10, 5, 80], [(0, 2), (1, 2)])
    [(0,), (1,)]
    """
    takes = [set(pipe) for pipe in pipes]
    users: list[list[int]] = [[] for _ in capacities]
    for number, pipe in enumerate(pipes):
        for at in pipe:
            users[at].append(number)
    by_width = sorted(range(len(capacities)), key=lambda at: (-capacities[at], at))
    for at in by_width:
        others = [takes[number] - {at} for number in users[at]]
        if others and all(others):
            cover = {min(other, key=lambda o: (capacities[o], o)) for other in others}
            if sum(capacities[o] for o in cover) <= capacities[at]:
                for number in users[at]:
                    takes[number].discard(at)
    return [tuple(sorted(take)) for take in takes]


def components(pipes: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Return the pipes in groups that share no resource, each ascending, by their first.

    >>> components([(0, 1), (2,), (1, 3)])
    [[0, 2], [1]]
    """
    leader: dict[int, int] = {}

    def find(at: int) -> int:
        while leader.setdefault(at, at) != at:
            leader[at] = leader[leader[at]]
            at = leader[at]
        return at

    for first, *rest in pipes:
        for at in rest:
            leader[find(at)] = find(first)
    groups: dict[int, list[int]] = {}
    for number, pipe in enumerate(pipes):
        groups.setdefault(find(pipe[0]), []).append(number)
    return list(groups.values())


class Sharing:
    """Rates of a component's pipes, looked up by how many transfers are in each.

    Schedules repeat: the same few patterns return chunk after chunk.

    Parameters
    ----------
    capacities : sequence of int
        Of all resources, in MB/s.
    pipes : sequence of tuple of int
        The resources that each pipe of the component takes; none empty.
    """

    def __init__(self, capacities: Sequence[int], pipes: Sequence[tuple[int, ...]]) -> None:
        used = sorted({at for pipe in pipes for at in pipe})
        place = {at: number for number, at in enumerate(used)}
        self._capacities = [capacities[at] for at in used]
        self._pipes = [tuple(place[at] for at in pipe) for pipe in pipes]
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def rates(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Return what `max_min_rates` returns."""
        rates = self._known.get(counts)
        if rates is None:
            rates = max_min_rates(self._capacities, self._pipes, counts)
            self._known[counts] = rates
        return rates


def shared(
    capacities: Sequence[int], pipes: Sequence[tuple[int, ...]]
) -> Iterator[tuple[list[int], Sharing]]:
    """Yield the components of `pipes` and how each shares its resources."""
    needed = without_idle(capacities, pipes)
    for members in components(needed):
        yield members, Sharing(capacities, [needed[number] for number in members])
