"""What is measured: blinkrun itself, and what every peer must offer to take its turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from blinkrun.bench.work import Array, Buffers, Work, numpy_dtype

Call = Callable[[], object]


class Control(Protocol):
    """How the ranks of a benchmark agree; the communicator is one."""

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def barrier(self) -> None:
        """Return when every rank has called."""
        ...

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        """Return what `root` gave."""
        ...

    def allgather_object(self, obj: Any) -> list[Any]:
        """Return what every rank gave, in rank order."""
        ...


class Library(Protocol):
    """A library under measurement."""

    @property
    def name(self) -> str:
        """What the table and the JSON file call it."""
        ...

    def refuses(self, work: Work) -> str | None:
        """Return why the library cannot do `work`, None if it can; the same on every rank."""
        ...

    def make_buffers(self, work: Work) -> Buffers:
        """Return buffers for `work`; their memory is written before anything is timed."""
        ...

    def make_call(self, work: Work, buffers: Buffers) -> Call:
        """Return the call to time, with all that can be prepared before done."""
        ...


class UserMemory:
    """Ordinary memory for the largest work; peers share it, one at a time is measured."""

    def __init__(self) -> None:
        self._first = self._second = _allocate(0)

    def pair(self, work: Work) -> tuple[Array, Array]:
        """Return two arrays of `work.size_bytes`, in the type of `work`."""
        if self._first.nbytes < work.size_bytes:
            self._first = _allocate(work.size_bytes)
            self._second = _allocate(work.size_bytes)
        dtype = numpy_dtype(work.dtype)
        first, second = (
            array[: work.size_bytes].view(dtype) for array in (self._first, self._second)
        )
        return first, second

    def buffers(self, work: Work) -> Buffers:
        """Return buffers of `work` in this memory."""
        return Buffers.of(work, *self.pair(work))


def _allocate(num_bytes: int) -> Array:
    return np.zeros(num_bytes, np.uint8)


class Blinkrun:
    """The library itself, on arrays of its arena or on ordinary ones.

    Parameters
    ----------
    world : blinkrun.communicator.Communicator
        The communicator over all ranks.
    kind : str
        ``arena`` or ``user``.
    """

    name = "blinkrun"

    def __init__(self, world: Any, kind: str) -> None:
        self._world = world
        self._kind = kind
        self._arena: dict[str, Array] = {}
        self._user = UserMemory()

    def refuses(self, work: Work) -> str | None:
        """Nothing is refused."""
        return None

    def make_buffers(self, work: Work) -> Buffers:
        """Return buffers of the kind that is measured."""
        if self._kind == "user":
            return self._user.buffers(work)
        first = self._from_arena("first", work)
        second = self._from_arena("second", work) if work.num_blocks > 1 else first
        return Buffers.of(work, first, second)

    def _from_arena(self, name: str, work: Work) -> Array:
        """Return arena memory kept from size to size, so that every rank lays it out alike."""
        kept = self._arena.get(name)
        if kept is None or kept.nbytes < work.size_bytes:
            kept = self._arena[name] = self._world.empty_bytes(work.size_bytes)
        return kept[: work.size_bytes].view(numpy_dtype(work.dtype))

    def make_call(self, work: Work, buffers: Buffers) -> Call:
        """Return the call of the public API."""
        world, send, recv = self._world, buffers.send, buffers.recv
        is_root = world.rank == work.root
        calls: dict[str, Call] = {
            "allreduce": partial(world.allreduce, send, work.op, recv),
            "broadcast": partial(world.broadcast, send, work.root, recv),
            "reduce": partial(world.reduce, send, work.root, work.op, recv if is_root else None),
            "allgather": partial(world.allgather, send, recv),
            "reducescatter": partial(world.reducescatter, send, work.op, recv),
            "alltoall": partial(world.alltoall, send, recv),
        }
        return calls[work.collective]
