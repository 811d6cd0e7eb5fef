"""Gradient buckets: where each gradient lies, and which bucket may start when.

Values and a state machine, nothing else: no memory, no communication, no framework. The adapter
owns the arena, copies gradients in and starts the collectives that `BucketProgress` releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blinkrun.errors import GradientOrderError, UsageError
from blinkrun.types import DType

ALIGN_BYTES = 64  # a cache line: slots of different gradients never share one
NO_BUCKET = -1

_NOTHING = range(0)


@dataclass(frozen=True, slots=True)
class GradientSpec:
    """What is known of a gradient before it exists."""

    name: str
    dtype: DType
    num_elements: int

    def __post_init__(self) -> None:
        if self.num_elements < 0:
            raise UsageError(f"gradient '{self.name}' has {self.num_elements} elements, need >= 0")

    @property
    def padded_bytes(self) -> int:
        """Bytes of its slot, a multiple of `ALIGN_BYTES`."""
        return _round_up(self.num_elements * self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one gradient in its bucket; `start` counts elements."""

    gradient: int
    start: int
    num_elements: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """A run of gradients of one dtype that is reduced in one call.

    Attributes
    ----------
    dtype : DType
        Type of every element.
    slots : tuple of Slot
        The gradients, in the order in which they are expected.
    offset_bytes : int
        Where the bucket begins in the arena.
    is_direct : bool
        Whether its only gradient is so large that it is not copied in: the collective reads it
        where backward has put it, and writes the result here.
    """

    dtype: DType
    slots: tuple[Slot, ...]
    offset_bytes: int
    is_direct: bool

    @property
    def num_elements(self) -> int:
        """Elements that the collective moves."""
        return self.slots[-1].start + self.slots[-1].num_elements

    @property
    def num_bytes(self) -> int:
        """Bytes that the collective moves."""
        return self.num_elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """All buckets of a set of gradients, in the order in which every rank reduces them.

    Attributes
    ----------
    buckets : tuple of Bucket
        In the order in which they are reduced.
    bucket_of : tuple of int
        The bucket of each gradient; `NO_BUCKET` for one that has no place.
    flags_offset_bytes : int
        Where the flags begin in the arena, behind all buckets: a byte per gradient that says
        whether this rank has it. Their maximum over ranks says whether any rank has it.
    num_bytes : int
        Bytes of arena, the same for every order and bucket size.
    """

    buckets: tuple[Bucket, ...]
    bucket_of: tuple[int, ...]
    flags_offset_bytes: int
    num_bytes: int


def plan_buckets(
    gradients: Sequence[GradientSpec],
    order: Sequence[int],
    bucket_bytes: int,
    direct_bytes: int | None = None,
    groups: Sequence[Sequence[int]] = (),
) -> BucketLayout:
    """Return the buckets for those of `gradients` that `order` names, filled in `order`.

    Gradients of one dtype that follow each other in `order` share a bucket until the next would
    take it past `bucket_bytes`; one that is larger has a bucket of its own. Buckets come in the
    order in which they are full, if gradients become ready in `order`.

    Parameters
    ----------
    gradients : sequence of GradientSpec
        All gradients; the numbers in `order` and in the result are positions in it.
    order : sequence of int
        The gradients that have a place, each once, first ready first.
    bucket_bytes : int
        Largest bucket, in bytes.
    direct_bytes : int, optional
        Gradients of this size or larger have a bucket of their own and are not copied into it;
        without it, all are copied.
    groups : sequence of sequences of int
        Gradients that are reduced together, whatever their size: a group has a bucket for each of
        its dtypes, which nothing else shares. A gradient is in one group at most.

    Raises
    ------
    UsageError
        If `order` names a gradient twice or one that there is not, or `bucket_bytes` is below 1.

    Examples
    --------
    >>> three = [GradientSpec(name, DType.FLOAT32, 32) for name in "abc"]
    >>> layout = plan_buckets(three, order=[2, 1, 0], bucket_bytes=256)
    >>> [[slot.gradient for slot in bucket.slots] for bucket in layout.buckets]
    [[2, 1], [0]]
    >>> plan_buckets(three, [2, 1, 0], 256, groups=[(0, 2)]).bucket_of
    (1, 0, 1)
    """
    if bucket_bytes < 1:
        raise UsageError(f"bucket_bytes is {bucket_bytes}, need at least 1")
    if len(set(order)) < len(order) or not set(order) <= set(range(len(gradients))):
        raise UsageError(f"order names each of {len(gradients)} gradients once, got {list(order)}")
    buckets: list[Bucket] = []
    bucket_of = [NO_BUCKET] * len(gradients)
    offset_bytes = 0
    for members, is_direct in _group(gradients, order, bucket_bytes, direct_bytes, groups):
        for member in members:
            bucket_of[member] = len(buckets)
        buckets.append(_place(gradients, members, offset_bytes, is_direct))
        offset_bytes += sum(gradients[member].padded_bytes for member in members)
    num_bytes = offset_bytes + _round_up(len(gradients))
    return BucketLayout(tuple(buckets), tuple(bucket_of), offset_bytes, num_bytes)


class BucketProgress:
    """Which gradients of a step are ready, and which buckets may be reduced now.

    Every rank reduces bucket 0, 1, 2, … in this order, whatever the order of its gradients: a
    bucket that is full waits for the ones before it. So ranks whose gradients come in different
    orders, or not at all, still call the same collectives.

    Parameters
    ----------
    layout : BucketLayout
        The buckets, the same on every rank.
    passes : int
        Backward passes that make a gradient ready.
    """

    def __init__(self, layout: BucketLayout, passes: int = 1) -> None:
        if passes < 1:
            raise UsageError(f"backward_passes_per_step is {passes}, need at least 1")
        self.layout = layout
        self.passes = passes
        self.reset()

    def reset(self) -> None:
        """Begin the next step: nothing is ready, nothing released."""
        self._passes_left = [self.passes] * len(self.layout.bucket_of)
        self._arrived: list[int] = []
        self.move_to(self.layout)

    def move_to(self, layout: BucketLayout) -> None:
        """Go over to other buckets for the same gradients; none may have arrived."""
        self.layout = layout
        self._missing = [len(bucket.slots) for bucket in layout.buckets]
        self.num_released = 0

    @property
    def has_arrived(self) -> bool:
        """Whether a gradient has been ready since the last reset."""
        return bool(self._arrived)

    @property
    def began(self) -> bool:
        """Whether any backward pass has reached a gradient since the last reset."""
        return bool(self._arrived) or any(left < self.passes for left in self._passes_left)

    def count_pass(self, gradient: int) -> bool:
        """Note that a backward pass has added to `gradient`; return whether it is ready now.

        Raises
        ------
        GradientOrderError
            If it has been ready before in this step.
        """
        left = self._passes_left[gradient]
        if left == 0:
            raise GradientOrderError(
                f"more than backward_passes_per_step={self.passes} backward passes before step(); "
                "raise backward_passes_per_step, or accumulate in no_sync()"
            )
        self._passes_left[gradient] = left - 1
        return left == 1

    def arrive(self, gradient: int) -> range:
        """Note that `gradient` lies in its bucket; return the buckets that may be reduced now."""
        self._passes_left[gradient] = 0
        self._arrived.append(gradient)
        bucket = self.layout.bucket_of[gradient]
        if bucket == NO_BUCKET:
            return _NOTHING
        self._missing[bucket] -= 1
        first = self.num_released
        while self.num_released < len(self._missing) and not self._missing[self.num_released]:
            self.num_released += 1
        return range(first, self.num_released)

    def absent(self) -> tuple[int, ...]:
        """Return the gradients that have not arrived: in the order of the buckets, then others."""
        bucket_of = self.layout.bucket_of
        if len(self._arrived) == len(bucket_of):
            return ()
        arrived = set(self._arrived)
        placed = [slot.gradient for bucket in self.layout.buckets for slot in bucket.slots]
        others = (gradient for gradient, bucket in enumerate(bucket_of) if bucket == NO_BUCKET)
        return tuple(g for g in (*placed, *others) if g not in arrived)

    def arrivals(self) -> tuple[int, ...]:
        """Return the gradients that have arrived, in this order."""
        return tuple(self._arrived)


def _group(
    gradients: Sequence[GradientSpec],
    order: Sequence[int],
    bucket_bytes: int,
    direct_bytes: int | None,
    groups: Sequence[Sequence[int]],
) -> list[tuple[list[int], bool]]:
    """Split `order` into buckets, listed by when their last gradient comes; True is for direct."""
    open_groups: dict[DType, tuple[list[int], int]] = {}
    closed: list[tuple[int, list[int], bool]] = []
    when = {gradient: position for position, gradient in enumerate(order)}
    group_of = {member: number for number, group in enumerate(groups) for member in group}
    together: dict[tuple[int, DType], list[int]] = {}
    for gradient in order:
        spec = gradients[gradient]
        if gradient in group_of:
            together.setdefault((group_of[gradient], spec.dtype), []).append(gradient)
            continue
        if direct_bytes is not None and spec.num_elements * spec.dtype.itemsize >= direct_bytes:
            closed.append((when[gradient], [gradient], True))
            continue
        members, filled = open_groups.get(spec.dtype, ([], 0))
        if members and filled + spec.padded_bytes > bucket_bytes:
            closed.append((when[members[-1]], members, False))
            members, filled = [], 0
        members.append(gradient)
        open_groups[spec.dtype] = (members, filled + spec.padded_bytes)
    closed += [(when[members[-1]], members, False) for members, _ in open_groups.values()]
    closed += [(when[members[-1]], members, False) for members in together.values()]
    return [(members, is_direct) for _, members, is_direct in sorted(closed)]


def _place(
    gradients: Sequence[GradientSpec], members: list[int], offset_bytes: int, is_direct: bool
) -> Bucket:
    """Lay `members` one after the other, each on a cache line."""
    dtype = gradients[members[0]].dtype
    slots: list[Slot] = []
    start = 0
    for member in members:
        slots.append(Slot(member, start, gradients[member].num_elements))
        start += gradients[member].padded_bytes // dtype.itemsize
    return Bucket(dtype, tuple(slots), offset_bytes, is_direct)


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES
