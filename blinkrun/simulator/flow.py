"""Transfers in flight: pipes that serve them, groups of pipes that share resources."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from blinkrun.simulator.sharing import SCALE, Sharing, shared

UNIT = 1000 * SCALE  # service that a byte takes: a rate of 1 MB/s times `SCALE`, for 1000 ns


class Pipe:
    """Transfers over the same resources; each gets the same rate.

    `served` is what each transfer has got that was there all the time, in `UNIT`s; a transfer is
    through when it reaches its mark, set when it starts. So a change of the rate costs the same
    however many transfers there are. `units` are those of the capacities in an MB/s.
    """

    __slots__ = ("arrived", "asked", "flights", "group", "rate", "resources", "served", "unit")

    def __init__(self, resources: tuple[int, ...], units: int = 1) -> None:
        self.resources = resources
        self.unit = UNIT * units
        self.group: Group
        self.flights: list[tuple[int, int, int, int]] = []  # mark, ticket, bytes, tag
        self.served = 0
        self.rate = 0
        self.asked = 0  # bytes that started
        self.arrived = 0  # bytes that came through

    def start(self, size_bytes: int, ticket: int, tag: int) -> bool:
        """Let a transfer start; True if it is the only one. Tickets tell equal ones apart."""
        heappush(self.flights, (self.served + size_bytes * self.unit, ticket, size_bytes, tag))
        self.asked += size_bytes
        return len(self.flights) == 1

    def arrivals(self) -> list[tuple[int, int]]:
        """Take out and return (tag, ticket) of the transfers that are through."""
        through = []
        flights, served = self.flights, self.served
        while flights and flights[0][0] <= served:
            _, ticket, size_bytes, tag = heappop(flights)
            self.arrived += size_bytes
            through.append((tag, ticket))
        return through


class Group:
    """Pipes that share resources. Their rates hold from `since_ns` to the next change."""

    __slots__ = ("is_dirty", "pipes", "sharing", "since_ns", "version")

    def __init__(self, pipes: list[Pipe], sharing: Sharing) -> None:
        self.pipes = pipes
        self.sharing = sharing
        self.since_ns = 0
        self.version = 0  # of the rates: ends that were foretold from older ones are void
        self.is_dirty = False
        for pipe in pipes:
            pipe.group = self

    def settle(self, now_ns: int) -> None:
        """Bring what was served up to `now_ns`."""
        passed = now_ns - self.since_ns
        if passed:
            for pipe in self.pipes:
                pipe.served += pipe.rate * passed
            self.since_ns = now_ns

    def share(self) -> int:
        """Set the rates anew; return in how many ns the next transfer is through, 0 for none."""
        rates = self.sharing.rates(tuple([len(pipe.flights) for pipe in self.pipes]))
        soonest = 0
        for pipe, rate in zip(self.pipes, rates, strict=True):
            pipe.rate = rate
            if rate:
                end = -((pipe.served - pipe.flights[0][0]) // rate)  # rounded up
                if not soonest or end < soonest:
                    soonest = end
        self.version += 1
        return soonest


def groups_of(pipes: Sequence[Pipe], capacities: Sequence[int]) -> list[Group]:
    """Return the pipes in groups that share nothing."""
    found = shared(capacities, [pipe.resources for pipe in pipes])
    return [Group([pipes[number] for number in members], sharing) for members, sharing in found]
