"""How fast the network between the hosts is: measured once, when a job starts.

The first ranks of all hosts send to each other in a ring, all at once, as collectives do: ever more
bytes until it takes long enough to tell. The others sleep meanwhile, so that they take no core.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from statistics import median

from blinkrun.comm.base import Wire
from blinkrun.types import Rank

LEAST_BYTES = 64 << 10  # of the first round; below that latency is measured
MOST_BYTES = 4 << 20  # of the last one, where the network is fast
ENOUGH_S = 0.01  # a round that takes so long tells the rate, but for what a limiter lets through
ROUNDS = 3  # the quickest counts
PINGS = 16
ALIKE = Fraction(7, 10)  # hosts whose rates differ by less count as equal
_SECONDS = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a host's network carries each way, and how long a small message takes.

    Attributes
    ----------
    mb_per_s : Fraction
        In 10^6 bytes per second; more than 0.
    latency_us : int
        In microseconds, at least 1.
    """

    mb_per_s: Fraction
    latency_us: int


def measure(
    wire: Wire, *, rank: Rank, leaders: Sequence[Rank], timeout_s: float
) -> Measured | None:
    """Return what came to this rank's host from the one before; None on ranks that lead no host.

    Collective over `wire`. Takes 20 to 50 ms, on a network of 10 Mbit/s 0.3 s.

    Parameters
    ----------
    wire : Wire
        Of all ranks.
    rank : Rank
        This one.
    leaders : sequence of Rank
        One of each host; at least 2.
    timeout_s : float
        Longest wait for another host, in seconds.

    Raises
    ------
    CollectiveTimeoutError
        If a host does not answer.
    """
    found = None
    if rank in leaders:
        found = _Ring(wire, leaders, leaders.index(rank), timeout_s).measure()
    wire.meet(timeout_s)
    return found


def by_host(came: Sequence[Measured]) -> tuple[Measured, ...]:
    """Return each host's network, given for each host what came to it from the one before.

    What comes to a host may be slow because the sender is: a host is as fast as the faster of
    what comes to it and what comes from it. Rates that are alike are made equal, so that the
    noise of measuring does not make unequal plans.

    Examples
    --------
    Host 1 is slow:

    >>> came = [Measured(Fraction(mb), 20) for mb in (110, 1, 2, 120)]
    >>> [float(each.mb_per_s) for each in by_host(came)]
    [120.0, 2.0, 120.0, 120.0]
    """
    after = [*came[1:], came[0]]
    rates = [max(own.mb_per_s, other.mb_per_s) for own, other in zip(came, after, strict=True)]
    latency_us = max(each.latency_us for each in came)
    return tuple(Measured(rate, latency_us) for rate in evened(rates))


def evened(rates: Sequence[Fraction]) -> list[Fraction]:
    """Return the rates with those that are alike made equal: to their median, in 3 digits."""
    falling = sorted(range(len(rates)), key=lambda at: -rates[at])
    cuts = [0]
    for at in range(1, len(falling)):
        if rates[falling[at]] < ALIKE * rates[falling[cuts[-1]]]:
            cuts.append(at)
    result = list(rates)
    for start, stop in pairwise([*cuts, len(falling)]):
        alike = falling[start:stop]
        value = _short(median(rates[at] for at in alike))
        for at in alike:
            result[at] = value
    return result


def _short(rate: Fraction) -> Fraction:
    """Return the rate in three digits.

    >>> _short(Fraction(117_823, 1000)), _short(Fraction(12_345))
    (Fraction(118, 1), Fraction(12300, 1))
    """
    return Fraction(f"{float(rate):.3g}")


class _Ring:
    """One leader's part: it sends to the next host's and receives from that of the one before."""

    def __init__(self, wire: Wire, leaders: Sequence[Rank], index: int, timeout_s: float) -> None:
        self._wire = wire
        self._leaders = leaders
        self._index = index
        self._timeout_s = timeout_s
        self._given = self._taken = bytearray()

    def measure(self) -> Measured:
        self._round(1)  # makes the connections
        latency_s = min(self._round(1) for _ in range(PINGS))
        num_bytes = LEAST_BYTES
        while (took_s := self._agree(self._round(num_bytes))) < ENOUGH_S and num_bytes < MOST_BYTES:
            num_bytes *= 2
        if took_s > ENOUGH_S:  # once more, without what a limiter lets through at first
            num_bytes = max(LEAST_BYTES // 4, int(num_bytes * ENOUGH_S / took_s))
        seconds = min(self._round(num_bytes) for _ in range(ROUNDS))
        rate = num_bytes / max(seconds - latency_s, seconds / 2) / 1e6
        # Leaders agree before each round, one message after the other: so do they in a round of 1.
        hops = 1 + (len(self._leaders) - 1).bit_length()
        return Measured(
            max(Fraction(f"{rate:.6g}"), Fraction(1, 100)), max(1, round(latency_s / hops * 1e6))
        )

    def _round(self, num_bytes: int) -> float:
        """Return how long it took until all were ready and so many bytes came.

        Never less than the bytes took: none is sent before this rank has begun to count.
        """
        self._agree(0.0)  # the last round is over for all
        started = time.monotonic()
        self._agree(0.0)
        self._send(num_bytes)
        return time.monotonic() - started

    def _send(self, num_bytes: int) -> None:
        """Send so many bytes to the next host, while as many come from the one before."""
        if len(self._given) != num_bytes:  # else memory that has its pages
            self._given, self._taken = bytearray(num_bytes), bytearray(num_bytes)
        self._swap(1, self._given, self._taken)

    def _agree(self, value: float) -> float:
        """Return the largest value of all leaders, when all are here: by dissemination."""
        step = 1
        while step < len(self._leaders):
            theirs = bytearray(_SECONDS.size)
            self._swap(step, bytearray(_SECONDS.pack(value)), theirs)
            value = max(value, *_SECONDS.unpack(theirs))
            step *= 2
        return value

    def _swap(self, step: int, given: bytearray, taken: bytearray) -> None:
        size = len(self._leaders)
        dst = self._leaders[(self._index + step) % size]
        src = self._leaders[(self._index - step) % size]
        self._wire.swap(dst, src, given, taken, self._timeout_s)
