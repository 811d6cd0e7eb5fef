"""Messages of the negotiation as bytes. All ranks run the same Python, so `marshal` does.

A message is a tuple of three: requests that are repeated, as bits of the response cache; requests
in full; controls (joins, leaves, notes, verdicts).
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from blinkrun.engine.request import Kind, Member, Request
from blinkrun.errors import InternalError
from blinkrun.types import DType

# (process set, generation of its cache, bits as a number or slots as a tuple)
Repeats = tuple[int, int, "int | tuple[int, ...]"]
Content = tuple[tuple[Repeats, ...], tuple[Any, ...], tuple[tuple[Any, ...], ...]]

_KINDS = tuple(Kind)
_DTYPES = tuple(DType)
_BITS_PER_SLOT = 40  # what a slot costs as a number of its own


class Control(IntEnum):
    """First field of a control."""

    JOIN = 0  # process set
    LEAVE = 1  # rank
    NOTE = 2  # payload
    FAIL = 3  # process set, name, number or MINE, verdict, reason


def encode(
    repeats: Sequence[Repeats], offers: Sequence[Request], controls: Sequence[tuple[Any, ...]]
) -> bytes:
    """Return one message."""
    return marshal.dumps((tuple(repeats), tuple(map(_pack, offers)), tuple(controls)))


def decode(message: bytes) -> Content:
    """Return repeats, packed requests (for `unpack`) and controls of a message."""
    try:
        repeats, offers, controls = marshal.loads(message)
    except (ValueError, EOFError, TypeError) as err:
        raise InternalError(f"a message of {len(message)} bytes is torn: {err}") from err
    return repeats, offers, controls


def unpack(packed: tuple[Any, ...]) -> Request:
    """Return the request that `encode` packed."""
    name, kind, members, process_set, op, root, scales, splits, device, ranks, where = packed
    return Request(
        name,
        _KINDS[kind],
        tuple(Member(_DTYPES[dtype], shape) for dtype, shape in members),
        process_set,
        op,
        root,
        scales,
        splits,
        device,
        ranks,
        where,
    )


def _pack(request: Request) -> tuple[Any, ...]:
    """Plain numbers only: marshal takes no enum, and numpy's integers for bytes."""
    return (
        request.name,
        int(request.kind),
        tuple((int(m.dtype), tuple(map(int, m.shape))) for m in request.members),
        int(request.process_set),
        int(request.op),
        int(request.root),
        (float(request.scales[0]), float(request.scales[1])),
        tuple(map(int, request.splits)),
        request.device,
        tuple(map(int, request.ranks)),
        request.where,
    )


def pack_slots(slots: Sequence[int]) -> int | tuple[int, ...]:
    """Return distinct `slots` in the shorter form: as the bits of a number, or as they are.

    >>> pack_slots([0, 2, 3])
    13
    >>> pack_slots([4000])
    (4000,)
    """
    top = max(slots)
    if len(slots) * _BITS_PER_SLOT < top:
        return tuple(slots)
    digits = bytearray(b"0") * (top + 1)
    for slot in slots:
        digits[top - slot] = 49  # "1"
    return int(digits, 2)


def unpack_slots(packed: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the slots that `pack_slots` packed; those of bits in ascending order.

    >>> unpack_slots(13)
    (0, 2, 3)
    """
    if isinstance(packed, tuple):
        return packed
    digits = f"{packed:b}"[::-1]
    if "0" not in digits:
        return tuple(range(len(digits)))
    return tuple(slot for slot, digit in enumerate(digits) if digit == "1")
