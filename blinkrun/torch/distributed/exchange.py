"""Moves of pieces that differ in size: every rank says first what it gives and expects.

What does not fit together is then an error on all ranks, before anything moves. The pieces go
through a scratch buffer of fixed size, in the arena or on the device where they are, in as many
rounds as the largest one needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from blinkrun import buffers
from blinkrun.errors import InvalidBufferError, MismatchError
from blinkrun.types import Collective, DType, Op, Rank

if TYPE_CHECKING:
    from blinkrun.torch.distributed.calls import Calls

SCRATCH_BYTES = 4 << 20  # of a rank's scratch buffer
ALIGN = 64


def exchange(
    calls: Calls, outputs: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]
) -> None:
    """Send source r to rank r and receive output r from there; sizes and shapes may all differ.

    Raises
    ------
    MismatchError
        On every rank, if what one rank sends is not what the other expects.
    """
    everyone = _told(calls, [_num_bytes(each) for each in sources], outputs, sources)
    size = calls.size
    for giver in range(size):
        for taker in range(size):
            given, expected = everyone[giver][taker], everyone[taker][size + giver]
            if given != expected:
                raise MismatchError(
                    f"all_to_all: rank {giver} sends {given} bytes to rank {taker}, which expects"
                    f" {expected}; output splits must be the other ranks' input splits"
                )
    most = max(max(row[:size]) for row in everyone)
    if most == 0:
        return
    step = _step(most, size)
    scratch = _Scratch(calls, size * step, size * step, outputs[0])
    given_bytes = [_bytes(each) for each in sources]
    taken = [_Taken(each) for each in outputs]
    for start in range(0, most, step):
        for peer, piece in enumerate(given_bytes):
            part = piece[start : start + step]
            scratch.give[peer * step : peer * step + len(part)] = part
        scratch.run(calls, Collective.ALLTOALL, step)
        for peer, piece in enumerate(taken):
            piece.put(start, scratch.take[peer * step : (peer + 1) * step])
    for piece in taken:
        piece.finish()


def fan_in(calls: Calls, outputs: Sequence[torch.Tensor], source: torch.Tensor, root: Rank) -> None:
    """Bring the `source` of every rank to `root`, which puts them into `outputs`."""
    expected = [_num_bytes(each) for each in outputs] if calls.rank == root else None
    _agree(calls, "gather", root, source, _num_bytes(source), expected)
    num_bytes = _num_bytes(source)
    if num_bytes == 0:
        return
    step = _step(num_bytes, calls.size)
    scratch = _Scratch(calls, step, calls.size * step, source)
    line = _bytes(source)
    taken = [_Taken(each) for each in outputs] if calls.rank == root else []
    for start in range(0, num_bytes, step):
        part = line[start : start + step]
        scratch.give[: len(part)] = part
        scratch.run(calls, Collective.ALLGATHER, step)
        for peer, piece in enumerate(taken):
            piece.put(start, scratch.take[peer * step : (peer + 1) * step])
    for piece in taken:
        piece.finish()


def fan_out(
    calls: Calls, output: torch.Tensor, sources: Sequence[torch.Tensor], root: Rank
) -> None:
    """Bring source r of `root` to rank r, which puts it into `output`."""
    given = [_num_bytes(each) for each in sources] if calls.rank == root else None
    _agree(calls, "scatter", root, output, _num_bytes(output), given)
    num_bytes = _num_bytes(output)
    if num_bytes == 0:
        return
    step = _step(num_bytes, calls.size)
    scratch = _Scratch(calls, calls.size * step, calls.size * step, output)
    lines = [_bytes(each) for each in sources] if calls.rank == root else []
    taken = _Taken(output)
    for start in range(0, num_bytes, step):
        for peer, line in enumerate(lines):
            part = line[start : start + step]
            scratch.give[peer * step : peer * step + len(part)] = part
        scratch.run(calls, Collective.ALLTOALL, step)
        taken.put(start, scratch.take[root * step : (root + 1) * step])
    taken.finish()


class _Taken:
    """Where bytes arrive: the tensor itself if it is packed, else a copy that is written back."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.detach()
        self._work = self._tensor
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            self._work = torch.empty_like(self._tensor, memory_format=torch.contiguous_format)
        self._line = _bytes(self._work)

    def put(self, start: int, part: torch.Tensor) -> None:
        """Take the bytes from `start` on, as many as there is room for."""
        room = self._line[start : start + len(part)]
        room.copy_(part[: len(room)])

    def finish(self) -> None:
        """Write a copy back."""
        if self._work is not self._tensor:
            self._tensor.copy_(self._work)


class _Scratch:
    """Buffers where `like` is: what this rank gives and what it takes."""

    def __init__(self, calls: Calls, give_bytes: int, take_bytes: int, like: torch.Tensor) -> None:
        self.give, self.take = (
            torch.from_numpy(calls.communicator.empty_bytes(num_bytes))
            if buffers.device_of(like) is None
            else like.new_empty(num_bytes, dtype=torch.uint8)
            for num_bytes in (give_bytes, take_bytes)
        )

    def run(self, calls: Calls, collective: Collective, count: int) -> None:
        """Run a collective on the two buffers, with blocks of `count` bytes."""
        give_at, take_at = self.give.data_ptr(), self.take.data_ptr()
        calls.run(collective, DType.UINT8, give_at, take_at, count, at=self.take)


def _told(
    calls: Calls,
    given: Sequence[int],
    outputs: Sequence[torch.Tensor],
    sources: Sequence[torch.Tensor],
) -> list[list[int]]:
    """Return what every rank gives to and expects from every other, in bytes.

    Raises
    ------
    MismatchError
        On every rank, if they have not one dtype.
    """
    dtypes = {each.dtype for each in (*outputs, *sources)}
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise InvalidBufferError(f"all_to_all: all tensors must have one dtype, got {names}")
    dtype = next(iter(dtypes))
    expected = [_num_bytes(each) for each in outputs]
    everyone = _allgather_ints(calls, [*given, *expected, _number(dtype)])
    _check_dtypes("all_to_all", [row[-1] for row in everyone])
    return everyone


def _agree(  # noqa: PLR0913, PLR0917 - what the ranks must agree on
    calls: Calls,
    what: str,
    root: Rank,
    tensor: torch.Tensor,
    num_bytes: int,
    of_root: Sequence[int] | None,
) -> None:
    """Raise on every rank unless all have the same root, dtype and size, and the root fits them."""
    fits = int(of_root is None or all(each == num_bytes for each in of_root))
    everyone = _allgather_ints(calls, [root, num_bytes, _number(tensor.dtype), fits])
    for at, name in ((0, "root"), (1, "size in bytes")):
        values = [row[at] for row in everyone]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            raise MismatchError(
                f"{what}: rank {other} calls it with {name} {values[other]}, rank 0 with"
                f" {values[0]}; every rank must give the same"
            )
    _check_dtypes(what, [row[2] for row in everyone])
    if not everyone[root][3]:
        raise MismatchError(
            f"{what}: the list of root {root} must have tensors of {num_bytes} bytes each, as the"
            " other ranks have"
        )


def _allgather_ints(calls: Calls, mine: Sequence[int]) -> list[list[int]]:
    """Return the numbers of every rank; all have as many."""
    source = torch.tensor(mine, dtype=torch.int64)
    everyone = torch.empty((calls.size, len(mine)), dtype=torch.int64)
    calls.run(
        Collective.ALLGATHER, DType.INT64, source.data_ptr(), everyone.data_ptr(), len(mine), Op.SUM
    )
    return everyone.tolist()


DTYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)


def _number(dtype: torch.dtype) -> int:
    """Return a number for `dtype` that all ranks have for it."""
    return DTYPES.index(dtype)


def _check_dtypes(what: str, numbers: Sequence[int]) -> None:
    other = next((rank for rank, number in enumerate(numbers) if number != numbers[0]), None)
    if other is not None:
        raise MismatchError(
            f"{what}: rank {other} has {DTYPES[numbers[other]]}, rank 0 has"
            f" {DTYPES[numbers[0]]}; every rank must give the same dtype"
        )


def _step(most: int, size: int) -> int:
    """Return the bytes of each piece that move in one round."""
    return min(-(-most // ALIGN) * ALIGN, max(ALIGN, SCRATCH_BYTES // size // ALIGN * ALIGN))


def _num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a packed tensor as a line of bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8)
