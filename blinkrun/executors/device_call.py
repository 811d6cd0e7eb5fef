"""A call of the kernel but for its addresses: made once, then launched again and again."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from blinkrun.executors import device_layout as layout
from blinkrun.executors.base import Request
from blinkrun.executors.device_programs import Loaded, desc_of

# A `layout.Call` in parts: what is before the buffers, these, sizes and scales, timeout, the rest.
CALL = struct.Struct("<40s2Q40sQ16s")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a call comes to on this rank, wherever its buffers lie.

    Attributes
    ----------
    head, middle, tail : bytes
        Parts of `CALL`.
    dtype : int
        Element type, by which the kernel is chosen.
    blocks : int
        Thread blocks.
    flat, desc : bytes
        What a proxy is told of the call, where there are several hosts.
    """

    head: bytes
    middle: bytes
    tail: bytes
    dtype: int
    blocks: int
    flat: bytes
    desc: bytes


def prepare(request: Request, loaded: Loaded, *, group: int, most_blocks: int) -> Prepared:
    """Return the call of `request` by the programs `loaded`.

    Parameters
    ----------
    request : Request
        Its addresses do not matter.
    loaded : Loaded
        For calls of its size.
    group : int
        Address of the rank's group on the device.
    most_blocks : int
        Thread blocks of a call, at most.
    """
    dtype, count = int(request.dtype), request.count
    scales = request.prescale, request.postscale
    words = layout.CALL.pack(
        group,
        *loaded.addresses,
        0,
        0,
        count,
        loaded.eager_bytes,
        layout.hash_scales(*scales),
        *scales,
        0,
        request.root,
        request.collective,
        dtype,
        request.op,
    )
    head, _, _, middle, _, tail = CALL.unpack(words)
    blocks = loaded.blocks(count * request.dtype.itemsize, most_blocks)
    return Prepared(head, middle, tail, dtype, blocks, loaded.flat, desc_of(request))
