"""What one optimizer asks of the engine: reductions under names of its own."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from blinkrun import engine, log
from blinkrun.adapter.process_sets import ProcessSet, number_of
from blinkrun.buffers import view
from blinkrun.engine import objects
from blinkrun.engine.handle import Part
from blinkrun.engine.request import CPU, CUDA, Kind, Member, Request
from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.torch import devices
from blinkrun.types import Op, Rank

Call = tuple[Request, list[Part]]

_numbers: WeakKeyDictionary[Any, defaultdict[int, Iterator[int]]] = WeakKeyDictionary()


class Exchange:
    """Named reductions among the ranks of a process set.

    Every rank of the set makes it, in the same order among those of the set: the names hold a
    number that counts them. It goes over to the next engine when the job is joined again.

    Parameters
    ----------
    process_set : ProcessSet
        Whose ranks they are; registered.
    owner : str
        What the names begin with.

    Attributes
    ----------
    ranks : tuple of Rank
        The ranks of the set; empty if this rank is not among them.
    is_alone : bool
        Whether there is nobody to exchange anything with.
    """

    def __init__(self, process_set: ProcessSet, owner: str) -> None:
        self.engine = engine.current()
        self.process_set = process_set
        self._number = number_of(process_set)
        members = self.engine.process_sets()[self._number]
        self.ranks: tuple[Rank, ...] = members if self.rank in members else ()
        self.is_alone = len(self.ranks) < 2
        counters = _numbers.setdefault(self.engine, defaultdict(itertools.count))
        self.prefix = f"{owner}.{next(counters[self._number])}"

    @property
    def rank(self) -> Rank:
        """The number of this rank in the job."""
        return int(self.engine.world.rank)

    @property
    def is_first(self) -> bool:
        """Whether this is the first rank of the set."""
        return self.ranks[:1] == (self.rank,)

    def era(self) -> tuple[str, int]:
        """Return what changes when ranks may no longer know the same of each other.

        All ranks have joined since, which not all did at once; or the job was left and joined
        again. Raises NotInitializedError if it was left only.
        """
        if self.engine is not engine.current():
            self.engine = engine.current()
            self._number = number_of(self.process_set)
            if self.engine.process_sets()[self._number] != self.ranks:
                raise UsageError(
                    f"{self.prefix} was made for the ranks {list(self.ranks)}, and the job has "
                    "others now; wrap the optimizer again"
                )
            self.prefix += ".again"  # no name that the next optimizers get
        return self.prefix, self.engine.joins[self._number]

    def empty_bytes(self, num_bytes: int) -> torch.Tensor:
        """Return memory as uint8 that reductions of this set work in without a copy."""
        return torch.from_numpy(self.engine.empty_bytes(num_bytes, self._number))

    def device_bytes(self, num_bytes: int, index: int) -> torch.Tensor:
        """Return such memory on device `index`; after a reduction on it has run on all ranks.

        Where the arena of the device has no room it is other memory, which takes one more copy.
        """
        communicator = self.engine.communicator(self._number)
        try:
            memory = communicator.empty_bytes(num_bytes, device=True)
        except InvalidBufferError as err:
            if self.is_first:
                log.say(f"gradients are copied once more in each step: {err}", self.rank)
            return devices.plain_bytes(num_bytes, index)
        return devices.as_tensor(memory, index)

    def call(
        self,
        label: str,
        source: torch.Tensor,
        result: torch.Tensor,
        *,
        op: int,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> Call:
        """Return the allreduce of contiguous `source` into `result`, ready to be submitted."""
        given = view(source, label)
        taken = given if result is source else view(result, label)
        request = Request(
            f"{self.prefix}.{label}",
            Kind.ALLREDUCE,
            (Member(given.dtype, (given.count,)),),
            process_set=self._number,
            op=op,
            scales=scales,
            device=CPU if given.device is None else CUDA,
        )
        return request, [Part(given, taken)]

    def start(self, call: Call, streams: Sequence[int] = ()) -> Any:
        """Begin a reduction; the handle has ``wait()``.

        `streams` are those in which memory of a device was written; else the current one has.
        """
        return self.engine.submit(*call, streams=streams)

    def run(
        self, calls: Sequence[Call], started: Sequence[Any] = (), streams: Sequence[int] = ()
    ) -> None:
        """Carry out all `calls`, sent as one message, and wait for what was `started` before.

        Raises the first error when all have come to an end. Results on a device are there for what
        comes next in the current stream.
        """
        wait_for_all([*started, *self.engine.submit_all(calls, sync=True, streams=streams)])

    def agree_on(self, label: str, tensor: torch.Tensor, op: Op = Op.SUM) -> None:
        """Reduce a small contiguous tensor in place over the ranks."""
        self.run([self.call(label, tensor, tensor, op=op)])

    def gather(self, label: str, item: Any) -> list[Any]:
        """Return every rank's `item`, which is pickled, in the order of the ranks."""
        return list(
            objects.allgather_object(self.engine, item, self._number, name=f"{self.prefix}.{label}")
        )


def wait_for_all(handles: Sequence[Any]) -> None:
    """Wait for every handle, then raise the first error."""
    first: BaseException | None = None
    for handle in handles:
        try:
            handle.wait()
            devices.follow(handle)
        except Exception as err:
            first = first or err
    if first is not None:
        raise first
