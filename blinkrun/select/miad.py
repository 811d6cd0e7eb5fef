"""Chunk size by trial: multiplicative increase, then additive decrease (MIAD).

Small chunks fill a pipeline quickly and pay for every step; large ones pay for the filling. Between
the two lies a size that depends on the trees, the links and the data, and is found by trying.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from blinkrun.errors import UsageError
from blinkrun.schedule.chunking import ALIGN_BYTES

_PARTS = 6  # into which the range between the best size's neighbours is cut on the way down
_WAY_DOWN = 2 * _PARTS  # sizes at most: rounding steps to cache lines may make them up to half

Trial = tuple[tuple[int, int], ...]  # sizes in bytes and their times in ns


class Phase(StrEnum):
    """What the next record is for."""

    INCREASE = "increase"
    DECREASE = "decrease"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Miad:
    r"""The state of a search for the chunk size with the least time; `record` gives the next state.

    The rule, after Blink [1]_, section 4.2.1: begin with small chunks and multiply their size as
    long as the throughput grows; then make them smaller by equal steps until it stops to grow; stay
    at the best. In detail:

    1. *Increase*: `least`, ``least * factor``, …, `most`, until a size takes clearly longer than
       the best so far.
    2. *Decrease*: from the best size's larger neighbour down to its smaller one, by a sixth of what
       lies between the two, until a size takes clearly longer than the best on this way.
    3. *Settled*: the best of all sizes that were tried; of equal ones the smallest.

    The time of a size is the median of `samples` records. *Clearly* is by more than `tolerance`, so
    with :math:`\pm e` of noise and a tolerance of at least :math:`2e / (1 - e)` the increase never
    ends while the time still falls.

    Attributes
    ----------
    least, most : int
        Bounds of the chunk size in bytes, whole cache lines.
    factor : int, default 2
        By which chunks grow.
    samples : int, default 1
        Records for each size.
    tolerance : Fraction, default 0
        Part by which a time may exceed the best one and still count as equal.
    phase : Phase
    chunk_bytes : int
        The size that the next record is of; once settled, the answer. 0 stands for `least`.
    pending : tuple of int
        Records of that size so far, in ns.
    tried : tuple of (int, int)
        Sizes and their times in ns, in the order of the trial.
    ahead : tuple of int
        Sizes still to be tried on the way down.
    turned : int
        How many sizes had been tried when the way down began.

    Raises
    ------
    UsageError
        If the bounds are no whole cache lines or not in order, or a number makes no sense.

    Notes
    -----
    Let T be the true time, first falling and then growing, and let T(c) * c not fall and T(c) / c
    not grow with the size c, as for every sum of parts that are constant, proportional to c and
    proportional to 1 / c (what fills a pipeline and what its steps cost). With noise of
    :math:`\pm e` and the tolerance above, the size in the end takes at most
    :math:`\sqrt{factor}\,(1 + e) / (1 - e)` times the least time between `least` and the largest
    size of the increase, because that tries both neighbours of the best size. There are at most
    `most_records` records.

    References
    ----------
    .. [1] G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020.

    Examples
    --------
    >>> state = Miad(least=64 << 10, most=16 << 20)
    >>> while not state.is_settled:
    ...     chunks = (100 << 20) / state.chunk_bytes  # of 100 MB, over three hops of 20 GB/s
    ...     state = state.record(int((chunks + 2) * (state.chunk_bytes / 20 + 8000)))
    >>> state.chunk_bytes >> 10
    3072
    """

    least: int
    most: int
    factor: int = 2
    samples: int = 1
    tolerance: Fraction = Fraction(0)
    phase: Phase = Phase.INCREASE
    chunk_bytes: int = 0
    pending: tuple[int, ...] = ()
    tried: Trial = ()
    ahead: tuple[int, ...] = ()
    turned: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.most or self.least % ALIGN_BYTES or self.most % ALIGN_BYTES:
            raise UsageError(
                f"chunks of {self.least} to {self.most} bytes: need whole cache lines of "
                f"{ALIGN_BYTES} bytes, the least first"
            )
        if self.factor < 2 or self.samples < 1 or self.tolerance < 0:
            raise UsageError(
                f"chunks that grow by {self.factor}, {self.samples} records each, tolerance "
                f"{self.tolerance}: need at least 2, 1 and 0"
            )
        if not self.chunk_bytes:
            object.__setattr__(self, "chunk_bytes", self.least)

    @property
    def is_settled(self) -> bool:
        """Whether `chunk_bytes` is the answer, which no record changes."""
        return self.phase is Phase.SETTLED

    @property
    def most_records(self) -> int:
        """Records after which it is settled at the latest."""
        sizes = 1
        while self.least * self.factor**sizes <= self.most:
            sizes += 1
        return self.samples * (sizes + _WAY_DOWN)

    @property
    def best(self) -> tuple[int, int]:
        """The best size so far and its time in ns; `least` and -1 before there is one."""
        return _best(self.tried) if self.tried else (self.least, -1)

    def record(self, time_ns: int) -> Miad:
        """Return the state after a call with chunks of `chunk_bytes` took `time_ns`.

        Parameters
        ----------
        time_ns : int
            At least 0.

        Raises
        ------
        UsageError
            If the time is negative.
        """
        if time_ns < 0:
            raise UsageError(f"a call took {time_ns} ns; no time is negative")
        if self.is_settled:
            return self
        pending = (*self.pending, time_ns)
        if len(pending) < self.samples:
            return replace(self, pending=pending)
        median = sorted(pending)[(len(pending) - 1) // 2]
        tried = (*self.tried, (self.chunk_bytes, median))
        step = self._after_increase if self.phase is Phase.INCREASE else self._after_decrease
        return replace(step(tried), pending=(), tried=tried)

    def _after_increase(self, tried: Trial) -> Miad:
        """Return the next larger size, or turn round at the first that takes clearly longer."""
        larger = self.chunk_bytes * self.factor
        if larger <= self.most and not self._is_worse(tried[-1][1], tried):
            return replace(self, chunk_bytes=larger)
        return self._next(_way_down(tried), len(tried), tried)

    def _after_decrease(self, tried: Trial) -> Miad:
        """Return the next smaller size, or settle where it takes clearly longer again."""
        is_over = self._is_worse(tried[-1][1], tried[self.turned :])
        return self._next(() if is_over else self.ahead, self.turned, tried)

    def _next(self, ahead: tuple[int, ...], turned: int, tried: Trial) -> Miad:
        if not ahead:
            best, _ = _best(tried)
            return replace(self, phase=Phase.SETTLED, chunk_bytes=best, ahead=())
        chunk, *rest = ahead
        return replace(
            self, phase=Phase.DECREASE, chunk_bytes=chunk, ahead=tuple(rest), turned=turned
        )

    def _is_worse(self, time_ns: int, tried: Trial) -> bool:
        return time_ns > _best(tried)[1] * (1 + self.tolerance)


def _best(tried: Trial) -> tuple[int, int]:
    return min(tried, key=lambda entry: (entry[1], entry[0]))


def _way_down(tried: Trial) -> tuple[int, ...]:
    """Return the sizes between the best one's neighbours, by equal steps, the largest first.

    >>> _way_down(((640, 9), (1280, 7), (2560, 8)))
    (2240, 1920, 1600, 960)
    """
    best, _ = _best(tried)
    high = min((chunk for chunk, _ in tried if chunk > best), default=best)
    low = max((chunk for chunk, _ in tried if chunk < best), default=best)
    step = max((high - low) // _PARTS // ALIGN_BYTES * ALIGN_BYTES, ALIGN_BYTES)
    return tuple(chunk for chunk in range(high - step, low, -step) if chunk != best)
