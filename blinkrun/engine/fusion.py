"""Which ready requests travel together: a pure function, so every rank fuses alike.

Small tensors of one reduction are packed into a buffer and reduced by one call, since a call costs
the same for 4 bytes as for 16 KiB. How they are fused has no influence on the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from blinkrun.engine.events import Entry
from blinkrun.engine.request import ADASUM, Kind
from blinkrun.errors import UsageError
from blinkrun.types import DType

LARGEST_PACKED = 256 << 10  # bytes of a member; from there on copies cost more than a call


@dataclass(frozen=True, slots=True)
class Batch:
    """What one call carries out.

    Attributes
    ----------
    members : tuple of (Entry, int)
        The tensors, each as its request and its number there. All those of one request, or of
        reductions of several; empty for a request without tensors.
    entry : Entry
        The request of the first member; the only one but for reductions.
    kind, process_set, op, scales, device
        What all members have in common.
    dtype : DType or None
        Type of the elements; None without tensors. That of the first member where `kind` is not
        ALLREDUCE: a grouped gather may mix types.
    num_bytes : int
        Of all members, on the rank whose request `entry.request` is.
    offsets : tuple of int
        Where each member lies in the packed buffer, in bytes: one after the other.
    """

    members: tuple[tuple[Entry, int], ...]
    entry: Entry
    kind: Kind
    process_set: int
    op: int
    scales: tuple[float, float]
    device: str
    dtype: DType | None
    num_bytes: int
    offsets: tuple[int, ...]


@dataclass(slots=True)
class _Open:
    """A batch that still takes members."""

    members: list[tuple[Entry, int]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    num_bytes: int = 0

    def add(self, entry: Entry, member: int, num_bytes: int) -> None:
        self.members.append((entry, member))
        self.offsets.append(self.num_bytes)
        self.num_bytes += num_bytes

    def close(self, entry: Entry) -> Batch:
        request = entry.request
        dtype = request.members[self.members[0][1]].dtype if self.members else None
        return Batch(
            tuple(self.members),
            entry,
            request.kind,
            request.process_set,
            request.op,
            request.scales,
            request.device,
            dtype,
            self.num_bytes,
            tuple(self.offsets),
        )


def plan_fusion(entries: Sequence[Entry], *, fusion_bytes: int, largest: int) -> tuple[Batch, ...]:
    """Return the calls that carry out `entries`, in the order of their first members.

    Parameters
    ----------
    entries : sequence of Entry
        Requests that became ready together, in their order.
    fusion_bytes : int
        Most bytes of a batch of several members; 0 fuses nothing.
    largest : int
        A tensor of so many bytes or more travels alone: copying it costs more than a call.

    Raises
    ------
    UsageError
        If `fusion_bytes` is negative.
    """
    if fusion_bytes < 0:
        raise UsageError(f"fusion_bytes is {fusion_bytes}, need at least 0")
    begun: list[tuple[Entry, _Open]] = []
    filling: dict[tuple[object, ...], _Open] = {}
    limit = min(fusion_bytes, largest - 1) if fusion_bytes else -1
    for entry in entries:
        request = entry.request
        if request.kind is not Kind.ALLREDUCE or request.op == ADASUM or not request.members:
            begun.append((entry, _whole(entry)))
            continue
        key = (request.process_set, request.op, request.scales, request.device)
        for number, member in enumerate(request.members):
            num_bytes = math.prod(member.shape) * member.dtype.itemsize
            batch = filling.get((key, member.dtype)) if num_bytes <= limit else None
            if batch is None or batch.num_bytes + num_bytes > fusion_bytes:
                batch = _Open()
                begun.append((entry, batch))
                if num_bytes <= limit:
                    filling[key, member.dtype] = batch
            batch.add(entry, number, num_bytes)
    return tuple(batch.close(entry) for entry, batch in begun)


def _whole(entry: Entry) -> _Open:
    """All members of one request."""
    batch = _Open()
    for number, member in enumerate(entry.request.members):
        batch.add(entry, number, math.prod(member.shape) * member.dtype.itemsize)
    return batch


class FusionPlans:
    """`plan_fusion` with a memory: a training step asks for the same entries again and again.

    The entries of a repeated request are the same objects each time (`cache.Known`), so looking
    them up costs far less than planning.
    """

    def __init__(self, *, fusion_bytes: int, largest: int, capacity: int = 256) -> None:
        self._fusion_bytes = fusion_bytes
        self._largest = largest
        self._capacity = capacity
        # Every entry is in a batch of its plan, and while it lives no other object has its id.
        self._plans: dict[tuple[int, ...], tuple[Batch, ...]] = {}

    def plan(self, entries: tuple[Entry, ...]) -> tuple[Batch, ...]:
        """Return `plan_fusion` of `entries`."""
        key = tuple(map(id, entries))
        found = self._plans.get(key)
        if found is not None:
            return found
        batches = plan_fusion(entries, fusion_bytes=self._fusion_bytes, largest=self._largest)
        if len(self._plans) >= self._capacity:
            self._plans.clear()
        self._plans[key] = batches
        return batches
