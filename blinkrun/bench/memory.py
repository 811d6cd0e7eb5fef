"""The machine's own rate of reading and writing, measured beside the collectives.

An allreduce of N bytes by n ranks makes every rank read n pieces of N/n bytes and write as many:
N bytes read, N bytes written, whatever n is. Here every rank reads and writes N bytes of its own,
all at the same time, in the two ways a program may do it: in place, and from one array to another.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from blinkrun.bench.libraries import Call, UserMemory
from blinkrun.bench.work import Buffers, Work

LARGE_BYTES = 16 << 20  # below, the caches are measured and not the memory
WAYS = ("memory add", "memory copy")


class Memory:
    """Takes its turn like a library; its call moves the bytes and adds nothing across ranks."""

    def __init__(self, name: str, memory: UserMemory) -> None:
        self.name = name
        self._memory = memory

    def refuses(self, work: Work) -> str | None:
        """Refuse what says nothing about the memory."""
        if work.collective != "allreduce":
            return "the memory rate is compared with allreduce only"
        if work.size_bytes < LARGE_BYTES:
            return "the memory rate is measured from 16 MiB up"
        return None

    def make_buffers(self, work: Work) -> Buffers:
        """Return two ordinary arrays."""
        first, second = self._memory.pair(work)
        return Buffers(first, second)

    def make_call(self, work: Work, buffers: Buffers) -> Call:
        """Return the pass over the bytes."""
        unit = np.float32 if work.size_bytes % 4 == 0 else np.uint8
        first, second = buffers.send.view(unit), buffers.recv.view(unit)
        if self.name == "memory add":
            first.fill(0)
            return partial(np.add, first, unit(1), out=first)
        return partial(np.copyto, second, first)


def make_memory() -> list[Memory]:
    """Return both ways, on the same arrays."""
    memory = UserMemory()
    return [Memory(name, memory) for name in WAYS]
