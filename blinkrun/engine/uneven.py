"""Collectives whose blocks may differ in size: allgather, alltoall, reducescatter.

Where all blocks are equal the program of that collective runs straight from source to target.
Otherwise an allgather is a broadcast of each block into its place; an alltoall goes in rounds of
equal, padded blocks through bounded staging; a reducescatter is padded in the arena.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from blinkrun.buffers import View
from blinkrun.engine.arithmetic import array_at, divide, scale, sums_in
from blinkrun.engine.handle import Part
from blinkrun.engine.request import Request
from blinkrun.engine.transfer import Transfer, row_elements, rows, split_evenly
from blinkrun.types import Collective, DType, Op

STAGING_BYTES = 1 << 20  # of one direction of an uneven alltoall, over all ranks
LINE = 64


def allgather(
    transfer: Transfer, requests: Sequence[Request], member: int, part: Part
) -> tuple[View, tuple[int, ...]]:
    """Gather all ranks' rows; returns where they are, and how many each rank gave."""
    source = part.source
    counts = tuple(rows(request.members[member].shape) for request in requests)
    place = part.place((sum(counts), *source.shape[1:]))
    per_row = row_elements(source.shape)
    if per_row == 0 or sum(counts) == 0:
        return place, counts
    if len(set(counts)) == 1:
        transfer.call(
            Collective.ALLGATHER, source.dtype, source.pointer, place.pointer, source.count
        )
        return place, counts
    target = place.pointer
    for root, count in enumerate(counts):
        if count:
            given = source.pointer if root == transfer.rank else target
            transfer.call(
                Collective.BROADCAST, source.dtype, given, target, count * per_row, root=root
            )
        target += count * per_row * source.dtype.itemsize
    return place, counts


def alltoall(
    transfer: Transfer, requests: Sequence[Request], member: int, part: Part
) -> tuple[View, tuple[int, ...]]:
    """Exchange rows; returns where they are, and how many came from each rank."""
    source, me = part.source, transfer.rank
    splits = [_splits(request, member, transfer.size) for request in requests]
    sent, received = splits[me], tuple(each[me] for each in splits)
    place = part.place((sum(received), *source.shape[1:]))
    per_row = row_elements(source.shape)
    largest = max(map(max, splits)) * per_row
    if largest == 0:
        return place, received
    if all(count * per_row == largest for each in splits for count in each):
        transfer.call(Collective.ALLTOALL, source.dtype, source.pointer, place.pointer, largest)
        return place, received
    row_bytes = per_row * source.dtype.itemsize
    _exchange(
        transfer,
        [(source.pointer + at * row_bytes, n * row_bytes) for at, n in _places(sent)],
        [(place.pointer + at * row_bytes, n * row_bytes) for at, n in _places(received)],
        largest * source.dtype.itemsize,
    )
    return place, received


def reducescatter(transfer: Transfer, request: Request, part: Part, *, exactly: bool) -> View:
    """Reduce, and return where this rank's rows of the result are.

    The first ranks have one row more where the rows do not divide evenly.

    Parameters
    ----------
    exactly : bool
        Integers with an average or scales, which the engine works out itself.
    """
    source = part.source
    per_row = row_elements(source.shape)
    shares = split_evenly(rows(source.shape), transfer.size)
    place = part.place((shares[transfer.rank], *source.shape[1:]))
    if source.count == 0:
        return place
    if not exactly and shares[0] == shares[-1]:
        transfer.call(
            Collective.REDUCESCATTER,
            source.dtype,
            source.pointer,
            place.pointer,
            place.count,
            op=request.op,
            scales=request.scales,
        )
        return place
    if transfer.lane is not None:
        _padded(transfer, request, source, place, shares)
        return place
    average = exactly and request.op == Op.AVERAGE
    dtype = sums_in(source.dtype) if average else source.dtype
    block = shares[0] * per_row
    start = transfer.buffer((transfer.size + 1) * block * dtype.itemsize)
    result = start + transfer.size * block * dtype.itemsize
    given = array_at(source.pointer, source.count, source.dtype)
    blocks = array_at(start, transfer.size * block, dtype).reshape(transfer.size, block)
    for row, (at, count) in zip(blocks, _places(shares), strict=True):
        row[: count * per_row] = given[at * per_row : (at + count) * per_row]
        row[count * per_row :] = 0
    if exactly:
        scale(blocks, request.scales[0])
    transfer.call(
        Collective.REDUCESCATTER,
        dtype,
        start,
        result,
        block,
        op=Op.SUM if average else request.op,
        scales=(1.0, 1.0) if exactly else request.scales,
    )
    values = array_at(result, place.count, dtype)
    if average:
        divide(values, transfer.size)
    if exactly:
        scale(values, request.scales[1])
    np.copyto(array_at(place.pointer, place.count, place.dtype), values, casting="unsafe")
    return place


def _padded(
    transfer: Transfer, request: Request, source: View, place: View, shares: tuple[int, ...]
) -> None:
    """Reduce and scatter rows in blocks of equal size, by copies of whole blocks."""
    dtype = source.dtype
    per_row = row_elements(source.shape)
    row_bytes, block = per_row * dtype.itemsize, shares[0] * per_row
    block_bytes = block * dtype.itemsize
    start = transfer.buffer((transfer.size + 1) * block_bytes)
    result = start + transfer.size * block_bytes
    transfer.fill(start, transfer.size * block, dtype, 0)
    blocks = [
        (source.pointer + at * row_bytes, count * row_bytes, number * block_bytes)
        for number, (at, count) in enumerate(_places(shares))
    ]
    transfer.pack(start, blocks)
    transfer.call(
        Collective.REDUCESCATTER,
        dtype,
        start,
        result,
        block,
        op=request.op,
        scales=request.scales,
    )
    transfer.unpack(result, [(place.pointer, place.nbytes, 0)])


def _splits(request: Request, member: int, size: int) -> tuple[int, ...]:
    """Return the rows that a rank gives to each rank of the set."""
    return request.splits or split_evenly(rows(request.members[member].shape), size)


def _places(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return where each of `counts` begins, and itself."""
    return list(zip(accumulate(counts, initial=0), counts, strict=False))


def _exchange(
    transfer: Transfer,
    sent: list[tuple[int, int]],
    received: list[tuple[int, int]],
    largest: int,
) -> None:
    """Give (address, bytes) `sent` to each rank and take `received`; none is above `largest`."""
    most = max(STAGING_BYTES // transfer.size // LINE, 1) * LINE
    block = min(most, -(-largest // LINE) * LINE)
    start = transfer.buffer(2 * transfer.size * block)
    arrived = start + transfer.size * block
    for at in range(0, largest, block):
        size = min(block, largest - at)

        def pieces(blocks: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
            return [
                (address + at, min(size, length - at), index * size)  # noqa: B023
                for index, (address, length) in enumerate(blocks)
                if length > at  # noqa: B023
            ]

        transfer.pack(start, pieces(sent))
        transfer.call(Collective.ALLTOALL, DType.UINT8, start, arrived, size)
        transfer.unpack(arrived, pieces(received))
