"""Runs what has become ready: requests of one kind, fused or alone, on their communicators.

All ranks of a process set run the same batches in the same order, so nothing is asked here. A
batch of several members is packed into a buffer in the arena with one native call, reduced there
in place, and unpacked; a member that travels alone goes straight from its source to its target.
A rank that has joined takes part with neutral elements and drops the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic_ns

import numpy as np

from blinkrun.buffers import View
from blinkrun.engine import uneven
from blinkrun.engine.adasum import adasum
from blinkrun.engine.arithmetic import array_at, divide, is_own, neutral, scale, sums_in
from blinkrun.engine.device_transfer import DeviceTransfer
from blinkrun.engine.devices import Devices
from blinkrun.engine.events import Entry
from blinkrun.engine.fusion import LARGEST_PACKED, Batch, FusionPlans
from blinkrun.engine.handle import Handle, Part
from blinkrun.engine.process_sets import ProcessSets
from blinkrun.engine.record import Record
from blinkrun.engine.request import ADASUM, CPU, Kind, Member, Request
from blinkrun.engine.transfer import Transfer
from blinkrun.errors import InternalError
from blinkrun.types import Collective, Op

Find = Callable[[Request], Handle]


class Executor:
    """Runs ready requests of this rank.

    Parameters
    ----------
    sets : ProcessSets
        The communicators.
    find : callable
        Gives the handle of a request that this rank has offered.
    record : Record
        Told what ran.
    devices : Devices
        Where memory of a device is used.
    fusion_bytes : int
        Most bytes that are fused into one call.
    largest : int
        Members of this size in bytes or larger travel alone.
    """

    def __init__(  # noqa: PLR0913
        self,
        sets: ProcessSets,
        find: Find,
        record: Record,
        devices: Devices,
        *,
        fusion_bytes: int,
        largest: int = LARGEST_PACKED,
    ) -> None:
        self._sets = sets
        self._find = find
        self._record = record
        self._devices = devices
        self._is_traced = False
        self._fusion_bytes = fusion_bytes
        self._plans = FusionPlans(fusion_bytes=fusion_bytes, largest=largest)
        self._transfers: dict[tuple[int, bool], Transfer] = {}
        self._may_spin = True

    def run(self, entries: tuple[Entry, ...], *, may_spin: bool) -> None:
        """Run what has become ready together, in the order that all ranks derive from it.

        Raises
        ------
        CollectiveError
            If a rank is gone, late or has aborted; nothing can run any more then.
        """
        self._may_spin = may_spin
        entries = self._sets.of_mine(entries)
        if not entries:
            return
        self._record.ready(entries)
        self._devices.sweep()
        if len(entries) == 1 and len(entries[0].request.members) <= 1:
            self._alone(entries[0], 0)
            return
        for batch in self._plans.plan(entries):
            if len(batch.members) > 1 and _is_fused(batch):
                self._fused(batch)
                continue
            for entry, member in batch.members or ((batch.entry, 0),):
                self._alone(entry, member)

    def trace(self, is_on: bool) -> None:
        """Have the calls of all communicators timed, or not."""
        self._is_traced = is_on
        for transfer in list(self._transfers.values()):
            transfer.trace(is_on)

    def close(self) -> None:
        """Give back all buffers."""
        for transfer in self._transfers.values():
            transfer.close()
        self._transfers.clear()

    # ---- by kind -------------------------------------------------------------------------------

    def _alone(self, entry: Entry, member: int) -> None:
        """Run one member of a request, or a request that has none."""
        request = entry.request
        kind = request.kind
        handle = self._find(request) if entry.is_mine else None
        place: View | None = None
        begun_ns = monotonic_ns()
        passage = None if handle is None else handle.passage
        if passage is not None:
            passage.lane.follow(passage.before)
        if kind in (Kind.ADD_SET, Kind.REMOVE_SET):
            self._change_sets(entry)
        elif kind is Kind.ALLREDUCE:
            self._allreduce(request, member, handle)
        elif handle is not None and kind is not Kind.BARRIER:
            place = self._moved(entry, member, handle)
        if request.members:
            over_ns = monotonic_ns()
            num_bytes = handle.parts[member].source.nbytes if handle is not None else 0
            transfer = self._transfer(request)
            self._record.ran(
                (request,), transfer, num_bytes, (begun_ns, begun_ns, over_ns, over_ns)
            )
        if handle is not None:
            if entry.number:
                handle.number = entry.number
            if passage is not None:
                passage.lane.passed((handle,), self._transfer(request).check)
            handle.member_done(member, place)

    def _moved(self, entry: Entry, member: int, handle: Handle) -> View | None:
        """Run a kind that goes only where no rank has joined; return a new place of the result."""
        request, part = entry.request, handle.parts[member]
        transfer = self._transfer(request)
        if request.kind is Kind.BROADCAST:
            self._broadcast(transfer, request, part)
            return None
        requests = [each for each in entry.requests if each is not None]
        if request.kind is Kind.REDUCESCATTER:
            exactly = is_own(request.op, part.source.dtype, request.scales)
            return uneven.reducescatter(transfer, request, part, exactly=exactly)
        move = uneven.allgather if request.kind is Kind.ALLGATHER else uneven.alltoall
        place, handle.received_splits = move(transfer, requests, member, part)
        return place

    def _allreduce(self, request: Request, member: int, handle: Handle | None) -> None:
        transfer = self._transfer(request)
        if handle is None:
            part = _stand_in(transfer, request, request.members[member])
        else:
            part = handle.parts[member]
        source, target = part.source, part.target
        if target is None:
            raise InternalError(f"allreduce '{request.name}' has no target")
        if source.count == 0:
            return
        if request.op == ADASUM:
            _adasum(transfer, request.scales, source, target)
        elif is_own(request.op, source.dtype, request.scales):
            scales = request.scales if handle is not None else (1.0, 1.0)
            _integers(transfer, request.op, scales, source, target)
        else:
            transfer.call(
                Collective.ALLREDUCE,
                source.dtype,
                source.pointer,
                target.pointer,
                source.count,
                op=request.op,
                scales=request.scales,
            )

    def _broadcast(self, transfer: Transfer, request: Request, part: Part) -> None:
        source, target = part.source, part.target
        if target is None:
            raise InternalError(f"broadcast '{request.name}' has no target")
        if source.count == 0:
            return
        root = self._sets.ranks(request.process_set).index(request.root)
        transfer.call(
            Collective.BROADCAST,
            source.dtype,
            source.pointer,
            target.pointer,
            source.count,
            root=root,
        )

    def _change_sets(self, entry: Entry) -> None:
        request = entry.request
        if request.kind is Kind.ADD_SET:
            self._sets.add(entry.number, request.ranks)
            return
        for on_device in (False, True):
            transfer = self._transfers.pop((entry.number, on_device), None)
            if transfer is not None:
                transfer.close()
        self._sets.remove(entry.number)

    # ---- several members -----------------------------------------------------------------------

    def _fused(self, batch: Batch) -> None:
        """Reduce all members of a batch in one call, in a buffer in the arena."""
        begun_ns = monotonic_ns()
        dtype = batch.entry.request.members[batch.members[0][1]].dtype
        transfer = self._transfer(batch.entry.request)
        buffer = transfer.buffer(batch.num_bytes)
        packed: list[tuple[int, int, int]] = []
        unpacked: list[tuple[int, int, int]] = []
        ends: list[tuple[Handle, int]] = []
        for (entry, member), offset in zip(batch.members, batch.offsets, strict=True):
            if not entry.is_mine:
                _fill(transfer, buffer + offset, entry.request, entry.request.members[member])
                continue
            handle = self._find(entry.request)
            if handle.passage is not None:
                handle.passage.lane.follow(handle.passage.before)
            part = handle.parts[member]
            source, target = part.source, part.target
            if target is None:
                raise InternalError(f"allreduce '{entry.request.name}' has no target")
            num_bytes = source.nbytes
            packed.append((source.pointer, num_bytes, offset))
            unpacked.append((target.pointer, num_bytes, offset))
            ends.append((handle, member))
        transfer.pack(buffer, packed)
        packed_ns = monotonic_ns()
        transfer.call(
            Collective.ALLREDUCE,
            dtype,
            buffer,
            buffer,
            batch.num_bytes // dtype.itemsize,
            op=batch.op,
            scales=batch.scales,
        )
        moved_ns = monotonic_ns()
        transfer.unpack(buffer, unpacked)
        times_ns = (begun_ns, packed_ns, moved_ns, monotonic_ns())
        requests = [handle.request for handle, _ in ends]
        self._record.ran(requests, transfer, batch.num_bytes, times_ns)
        if transfer.lane is not None:
            transfer.lane.passed([handle for handle, _ in ends], transfer.check)
        for handle, member in ends:
            handle.member_done(member)

    def _transfer(self, request: Request) -> Transfer:
        """Return what moves the bytes of a request: by its process set, and where they lie."""
        key = request.process_set, not request.device.startswith(CPU)
        transfer = self._transfers.get(key)
        if transfer is None:
            communicator = self._sets.communicator(request.process_set)
            if key[1]:
                transfer = DeviceTransfer(communicator, self._devices.lane())
                transfer.buffer(self._fusion_bytes)  # before gradients have taken all of the arena
            else:
                transfer = Transfer(communicator)
            self._transfers[key] = transfer
            transfer.trace(self._is_traced)
        transfer.may_spin = self._may_spin
        return transfer


def _is_fused(batch: Batch) -> bool:
    """Whether one call of the core carries out all members."""
    return (
        batch.kind is Kind.ALLREDUCE
        and batch.op != ADASUM
        and batch.dtype is not None
        and not is_own(batch.op, batch.dtype, batch.scales)
    )


def _stand_in(transfer: Transfer, request: Request, member: Member) -> Part:
    """Return what a rank that has joined gives: neutral elements in the arena."""
    count = math.prod(member.shape)
    pointer = transfer.buffer(count * member.dtype.itemsize)
    exactly = is_own(request.op, member.dtype, request.scales)
    prescale = 1.0 if exactly else request.scales[0]
    transfer.fill(pointer, count, member.dtype, neutral(request.op, member.dtype, prescale))
    lane = transfer.lane
    place = (None, 0) if lane is None else (lane.index, lane.stream)
    view = View(pointer, count, member.shape, member.dtype, True, None, *place)
    return Part(view, view)


def _fill(transfer: Transfer, pointer: int, request: Request, member: Member) -> None:
    """Put neutral elements where a member of a rank that has joined would be."""
    value = neutral(request.op, member.dtype, request.scales[0])
    transfer.fill(pointer, math.prod(member.shape), member.dtype, value)


def _integers(
    transfer: Transfer, op: int, scales: tuple[float, float], source: View, target: View
) -> None:
    """Reduce integers that are averaged or scaled: see `arithmetic` for what comes out."""
    given = array_at(source.pointer, source.count, source.dtype)
    taken = array_at(target.pointer, target.count, target.dtype)
    if op != Op.AVERAGE:
        np.copyto(taken, given)
        scale(taken, scales[0])
        where = target.pointer
        transfer.call(Collective.ALLREDUCE, target.dtype, where, where, target.count, op=op)
        scale(taken, scales[1])
        return
    dtype = sums_in(source.dtype)
    values = transfer.communicator.empty(source.count, dtype.label)
    np.copyto(values, given)
    scale(values, scales[0])
    where = values.ctypes.data
    transfer.call(Collective.ALLREDUCE, dtype, where, where, source.count)
    divide(values, transfer.size)
    scale(values, scales[1])
    np.copyto(taken, values, casting="unsafe")


def _adasum(transfer: Transfer, scales: tuple[float, float], source: View, target: View) -> None:
    """Combine by Adasum; scales are factors before and after."""
    given = array_at(source.pointer, source.count, source.dtype)
    if scales[0] != 1.0:
        given = (given * scales[0]).astype(given.dtype)
    combined = adasum(transfer.communicator, given)
    if scales[1] != 1.0:
        combined = combined * scales[1]
    taken = array_at(target.pointer, target.count, target.dtype)
    np.copyto(taken, combined.reshape(-1), casting="unsafe")
