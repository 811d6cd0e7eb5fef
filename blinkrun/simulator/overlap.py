"""One training step by the clock: backward pass, gradient buckets, their allreduces.

The backward pass makes gradients from the last layer to the first. They are collected in buckets;
a full bucket is one allreduce, and the allreduces run one after the other, in that order, on a
stream of their own. Computing is not slowed by them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from blinkrun.errors import UsageError

MIB = 1 << 20
DDP_BUCKETS = (MIB, 25 * MIB)
"""Sizes of PyTorch's DistributedDataParallel: a small bucket first, to start early, then 25 MiB.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
"""

TimeNs = Callable[[int], int]  # of an allreduce of so many bytes


@dataclass(frozen=True, slots=True)
class Gradient:
    """What the backward pass of a layer gives.

    Attributes
    ----------
    size_bytes : int
    backward_ns : int
        Time of the layer's backward pass, at whose end the gradient is there.
    """

    size_bytes: int
    backward_ns: int

    def __post_init__(self) -> None:
        if self.size_bytes < 0 or self.backward_ns < 0:
            raise UsageError(
                f"gradient of {self.size_bytes} bytes after {self.backward_ns} ns; need >= 0"
            )


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced by one allreduce.

    Attributes
    ----------
    size_bytes : int
    ready_ns : int
        When its last gradient is there, from the start of the backward pass.
    """

    size_bytes: int
    ready_ns: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """An allreduce of a step; times from the start of the step."""

    size_bytes: int
    ready_ns: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Step:
    """A training step of one rank.

    Attributes
    ----------
    compute_ns : int
        Forward and backward pass.
    exchanges : tuple of Exchange
        By start.
    """

    compute_ns: int
    exchanges: tuple[Exchange, ...]

    @property
    def iteration_ns(self) -> int:
        """Until both the backward pass and the last allreduce are through."""
        return max([self.compute_ns, *(one.end_ns for one in self.exchanges)])

    @property
    def communication_ns(self) -> int:
        """All allreduces, hidden or not."""
        return sum(one.end_ns - one.start_ns for one in self.exchanges)

    @property
    def exposed_ns(self) -> int:
        """What the step takes longer than computing alone."""
        return self.iteration_ns - self.compute_ns


def split_by_weight(total: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Split `total` in proportion to `weights`, to whole numbers that add up to it.

    Raises
    ------
    UsageError
        If `total` or a weight is negative, or no weight is positive.

    Examples
    --------
    >>> split_by_weight(10, [1, 1, 1]), split_by_weight(7, [0, 5])
    ((3, 3, 4), (0, 7))
    """
    if total < 0 or min(weights, default=-1) < 0 or not any(weights):
        raise UsageError(f"{total} is not split by weights {list(weights)}")
    whole = sum(weights)
    ends = [total * upto // whole for upto in accumulate(weights, initial=0)]
    return tuple(end - start for start, end in pairwise(ends))


def buckets(gradients: Sequence[Gradient], caps_bytes: Sequence[int]) -> tuple[Bucket, ...]:
    """Return the buckets of a backward pass, in the order in which they become ready.

    Parameters
    ----------
    gradients : sequence of Gradient
        Of the layers from first to last, as the forward pass has them.
    caps_bytes : sequence of int
        A bucket is full as soon as it holds so much: the first entry for the first bucket, and so
        on, the last entry for all others. A gradient is never divided.

    Returns
    -------
    tuple of Bucket
        Their sizes add up to those of the gradients.

    Raises
    ------
    UsageError
        If there are no caps, or one is less than a byte.

    Examples
    --------
    >>> buckets([Gradient(40, 3), Gradient(10, 2), Gradient(30, 1)], [1, 50])
    (Bucket(size_bytes=30, ready_ns=1), Bucket(size_bytes=50, ready_ns=6))
    """
    if not caps_bytes or min(caps_bytes) < 1:
        raise UsageError(f"buckets of {list(caps_bytes)} bytes; need sizes of at least 1")
    full: list[Bucket] = []
    held = now = 0
    for gradient in reversed(gradients):
        held += gradient.size_bytes
        now += gradient.backward_ns
        if held >= caps_bytes[min(len(full), len(caps_bytes) - 1)]:
            full.append(Bucket(held, now))
            held = 0
    return (*full, Bucket(held, now)) if held else tuple(full)


def training_step(
    gradients: Sequence[Gradient],
    *,
    forward_ns: int,
    caps_bytes: Sequence[int],
    time_ns: TimeNs,
    overlaps: bool = True,
) -> Step:
    """Return one step: forward, backward, and the allreduces of its buckets.

    Parameters
    ----------
    gradients : sequence of Gradient
        Of the layers from first to last.
    forward_ns : int
    caps_bytes : sequence of int
        As for `buckets`.
    time_ns : callable
        Time of an allreduce of so many bytes.
    overlaps : bool, default True
        Whether an allreduce starts as soon as its bucket is full and the one before is through;
        otherwise all of them wait for the end of the backward pass.

    Examples
    --------
    >>> layers = [Gradient(40, 30), Gradient(60, 10)]
    >>> def time_ns(size: int) -> int:
    ...     return size // 2
    >>> step = training_step(layers, forward_ns=20, caps_bytes=[1], time_ns=time_ns)
    >>> step.iteration_ns, step.communication_ns, step.exposed_ns
    (80, 50, 20)
    """
    if forward_ns < 0:
        raise UsageError(f"a forward pass of {forward_ns} ns; need >= 0")
    compute_ns = forward_ns + sum(gradient.backward_ns for gradient in gradients)
    done: list[Exchange] = []
    free_ns = forward_ns if overlaps else compute_ns
    for bucket in buckets(gradients, caps_bytes):
        ready_ns = forward_ns + bucket.ready_ns
        start_ns = max(ready_ns, free_ns)
        free_ns = start_ns + time_ns(bucket.size_bytes)
        done.append(Exchange(bucket.size_bytes, ready_ns, start_ns, free_ns))
    return Step(compute_ns, tuple(done))


@dataclass(frozen=True, slots=True)
class TimeTable:
    """Times by size from a few that are known; linear in between, rounded up.

    Below the smallest size the time is that of the smallest: there it is all latency. Above the
    largest the rate is that of the largest. So a larger size never takes less time, and what
    bounds the rate of all known sizes bounds that of every size.

    Attributes
    ----------
    points : tuple of (int, int)
        Bytes and ns, by ascending bytes; times must not fall. `monotone` makes such of others.

    Examples
    --------
    >>> table = TimeTable(((100, 10), (200, 15), (400, 35)))
    >>> [table(size) for size in (1, 100, 110, 300, 500)]
    [10, 10, 11, 25, 44]
    """

    points: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if len(self.points) < 2:
            raise UsageError(f"{len(self.points)} known times; a table needs at least 2")
        for (small, less), (large, more) in pairwise(self.points):
            if not 0 <= small < large or not 0 <= less <= more:
                raise UsageError(
                    f"times of {small} and {large} bytes are {less} and {more} ns; "
                    "sizes must ascend and times must not fall"
                )

    def __call__(self, size_bytes: int) -> int:
        """Return the time of so many bytes, in ns."""
        largest, longest = self.points[-1]
        if size_bytes > largest:
            return -(-longest * size_bytes // largest)
        sizes = [size for size, _ in self.points]
        after = min(max(bisect_right(sizes, size_bytes), 1), len(sizes) - 1)
        (small, less), (large, more) = self.points[after - 1], self.points[after]
        beyond = max(0, size_bytes - small)
        return less - (-beyond * (more - less)) // (large - small)


def monotone(points: Iterable[tuple[int, int]]) -> TimeTable:
    """Return the table of these times, where a size takes at least as long as a smaller one.

    >>> monotone([(2, 5), (1, 6), (4, 9)]).points
    ((1, 6), (2, 6), (4, 9))
    """
    ordered = sorted(points)
    highest = accumulate((time_ns for _, time_ns in ordered), max)
    return TimeTable(tuple(zip((size for size, _ in ordered), highest, strict=True)))
