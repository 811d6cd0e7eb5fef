"""What the host and the kernel share, as `csrc/device_layout.hpp` lays it out.

A test compares every size and offset with those of the compiled core.
"""

from __future__ import annotations

import ctypes
import struct
from enum import IntEnum
from functools import lru_cache

RANKS = 32  # of one host, at most
FLAGS = 4096  # of a rank: flags times pieces
STREAMS = 1024  # of a rank: streams times pieces
LANES = 32  # that one block runs in turns
VERDICTS = 16  # of calls over hosts that are under way
RING_DEPTH = 4  # chunks of a message stream
EAGER_BYTES = 1 << 20  # of one of the two areas for small blocks
PAGE = 4096
PRIVATE = 2**64 - 1

_u8, _u32, _u64, _i32 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32
_Address = ctypes.c_uint64


class Desc(ctypes.Structure):
    """What a rank called."""

    _fields_ = (
        ("count", _u64),
        ("input", _u64),
        ("output", _u64),
        ("scales", _u64),
        ("root", _i32),
        ("collective", _u8),
        ("dtype", _u8),
        ("op", _u8),
        ("unused", _u8),
    )


class Post(ctypes.Structure):
    """`Desc` with the number of its call; a cache line."""

    _fields_ = (("seq", _u64), ("desc", Desc), ("unused", _u64 * 2))


class Control(ctypes.Structure):
    """The head of either area of a rank; flags and counts of messages follow."""

    _fields_ = (
        ("seq", _u64),
        ("blocks_done", _u32),
        ("failed", _u32),
        ("unused", _u64 * 6),
        ("posts", Post * RANKS * 2),
        ("unused_too", _u64 * 8),
    )


class Report(ctypes.Structure):
    """How a call ended badly; `code` is written last."""

    _fields_ = (
        ("code", _u32),
        ("unused", _u32),
        ("seq", _u64),
        ("channel", _i32),
        ("piece", _u32),
        ("chunk", _u64),
        ("step", _u32),
        ("kind", _u32),
        ("peer", _i32),
        ("flag", _u32),
        ("missing", _u32),
        ("size", _u32),
        ("desc", Desc),
        ("descs", Desc * RANKS),
    )


class Counts(ctypes.Structure):
    """Chunks of a stream of messages: those that the kernel has started, those that are through."""

    _fields_ = (("started", _u64), ("through", _u64))


class Host(ctypes.Structure):
    """Pinned memory of the host that the rank's kernel looks at and writes to."""

    _fields_ = (
        ("abort", _u32),
        ("unused", _u32),
        ("through", _u64),
        ("unused_too", _u64 * 14),
        ("report", Report),
        ("unused_then", _u8 * (-ctypes.sizeof(Report) % 128)),
        ("verdicts", _u64 * VERDICTS),
        ("counts", Counts * STREAMS),
    )


class Group(ctypes.Structure):
    """One rank's group, in the memory of its device; addresses are its own process's."""

    _fields_ = (
        ("rank", _u32),
        ("size", _u32),
        ("index", _u32),
        ("all", _u32),
        ("arena_bytes", _u64),
        ("scratch_bytes", _u64),
        ("chunk_bytes", _u64),
        ("rings_at", _u64),
        ("rings_bytes", _u64),
        ("host", _Address),
        ("arenas", _Address * RANKS),
        ("areas", _Address * RANKS),
        ("mine", _Address * RANKS),
        ("to", _Address * RANKS),
    )


class Call(ctypes.Structure):
    """The argument of a launch; `CALL` packs the same bytes."""

    _fields_ = (
        ("group", _Address),
        ("programs", _Address * 4),
        ("input", _Address),
        ("output", _Address),
        ("count", _u64),
        ("eager_bytes", _u64),
        ("scales", _u64),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("timeout_ns", _u64),
        ("root", _i32),
        ("collective", _u32),
        ("dtype", _u32),
        ("op", _u32),
    )


CALL = struct.Struct("<5Q2Q3Q2dQi3I")  # group and programs; buffers; sizes; scales; how

CONTROL_BYTES = -(-(ctypes.sizeof(Control) + RANKS * FLAGS * 8 + STREAMS * 8) // PAGE) * PAGE
SCRATCH_AT = CONTROL_BYTES + 2 * EAGER_BYTES


class Variant(IntEnum):
    """Places of a call's programs: by where everyone's buffers lie, and for small blocks."""

    DIRECT = 0
    STAGED = 1
    OUTPUT_ONLY = 2
    EAGER = 3


class Code(IntEnum):
    """How a call ended."""

    NONE = 0
    ABORTED = 1
    TIMEOUT = 2
    MISMATCH = 3
    NO_PROGRAM = 4
    NO_ROOM = 5


@lru_cache(maxsize=64)
def hash_scales(prescale: float, postscale: float) -> int:
    """Return the word by which ranks compare the scales of a call, as the core makes it."""
    before, after = struct.unpack("<2Q", struct.pack("<2d", prescale, postscale))
    return int(before ^ ((after << 21 | after >> 43) & PRIVATE))
