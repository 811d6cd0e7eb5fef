"""A rank's program as a flat list of 32-bit words: what the native core and kernels interpret.

Layout, in words (`csrc/program.hpp` reads it):

- header: version, collective, root, addressing, shares, size, slots, slot_depth, eager,
  pipelined, flags, number of prologue channels, number of channels;
- per channel: start, stop, number of steps, then its steps:

  - ``0 rank flag lag``: wait
  - ``1 flag``: signal
  - ``2 final num_dsts num_srcs`` and for each operand ``rank buffer index``: reduce

Version 2 is for an emulated machine: each operand has a fourth word, the number + 1 of the link
that carries it, or 0 for the rank's own memory.

Version 3 is for a program over several hosts. Ranks of operands and waits count on their host
(`Program.host_ranks`), and ``size`` in the header is how many those are; a word after the header's
last is the number of all ranks. The other steps are, with ``rank`` among all:

  - ``3 rank stream buffer index``: send; ``4 …``: receive
  - ``5 rank stream lag``: hold until sent; ``6 …``: until arrived

Version 4 is for devices. Ranks are as in version 3, also where there is one host; after the number
of all ranks comes this rank's, on its host. Each operand, of messages too, has a last word: 1 if it
is a slot in pinned host memory, else 0. A signal is ``1 flag low high``: a mask of the ranks of
this host that wait for the flag, in halves of 16 bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from blinkrun.errors import ProgramError
from blinkrun.schedule.devices import Slot, waiting_ranks
from blinkrun.schedule.ir import (
    Buffer,
    Operand,
    Program,
    Recv,
    Reduce,
    Send,
    Sent,
    Signal,
    Step,
    Wait,
)
from blinkrun.schedule.routes import Routes
from blinkrun.types import Rank

VERSION = 1
ROUTED_VERSION = 2
HOSTS_VERSION = 3
DEVICE_VERSION = 4


def encode(program: Program, rank: Rank, routes: Routes | None = None) -> npt.NDArray[np.int32]:
    """Return the words of `rank`'s part of `program`, shape (words,); with `routes`, its links too.

    Raises
    ------
    ProgramError
        If `rank` is none of the program's, a number does not fit 31 bits, or an operand needs a
        link that `routes` lacks, or there are `routes` and several hosts.
    """
    if program.hosts and routes is not None:
        raise ProgramError("an emulated machine is one host")
    version = VERSION if routes is None else ROUTED_VERSION
    return _Words(program, rank, HOSTS_VERSION if program.hosts else version, routes=routes).all()


def encode_device(
    program: Program, rank: Rank, hosted: Collection[Slot] = ()
) -> npt.NDArray[np.int32]:
    """Return the words of `rank`'s part of `program` for its device, shape (words,).

    Parameters
    ----------
    program : Program
        For ranks of which each has a device.
    rank : Rank
        Whose part.
    hosted : collection of (Rank, int)
        Slots that lie in pinned memory of the host, as `devices.hosted_slots` gives them.

    Raises
    ------
    ProgramError
        If `rank` is none of the program's, or a number does not fit 31 bits.
    """
    return _Words(program, rank, DEVICE_VERSION, hosted=hosted).all()


class _Words:
    """The words of one rank's part, in one of the versions."""

    def __init__(
        self,
        program: Program,
        rank: Rank,
        version: int,
        *,
        routes: Routes | None = None,
        hosted: Collection[Slot] = (),
    ) -> None:
        if not 0 <= rank < program.size:
            raise ProgramError(f"rank {rank} is none of the program's {program.size}")
        self._program, self._rank, self._version = program, rank, version
        self._routes, self._hosted = routes, hosted
        self._local = {other: at for at, other in enumerate(program.host_ranks(rank))}
        self._waiting = waiting_ranks(program) if version == DEVICE_VERSION else {}

    def all(self) -> npt.NDArray[np.int32]:
        program, steps = self._program, self._program.ranks[self._rank]
        words = [
            self._version,
            int(program.collective),
            program.root,
            int(program.addressing),
            program.shares,
            len(self._local),
            program.slots,
            program.slot_depth,
            int(program.eager),
            int(program.pipelined),
            program.flags,
            len(steps.prologue),
            len(steps.channels),
        ]
        if self._version >= HOSTS_VERSION:
            words.append(program.size)
        if self._version == DEVICE_VERSION:
            words.append(self._local[self._rank])
        for channel in (*steps.prologue, *steps.channels):
            words += [channel.part.start, channel.part.stop, len(channel.steps)]
            for step in channel.steps:
                words += self._step(step)
        if max(words) >= 2**31:
            raise ProgramError(f"program has a number beyond 31 bits ({max(words)})")
        return np.array(words, dtype=np.int32)

    def _step(self, step: Step) -> list[int]:
        match step:
            case Wait(other, flag, lag):
                return [0, self._local[other], flag, lag]
            case Signal(flag):
                return [1, flag, *self._mask(flag)]
            case Reduce():
                return self._reduce(step)
            case Send(operand, other, stream) | Recv(operand, other, stream):
                kind = 3 if isinstance(step, Send) else 4
                place = [int(operand.buffer), operand.index, *self._place(operand)]
                return [kind, other, stream, *place]
        kind = 5 if isinstance(step, Sent) else 6
        return [kind, step.rank, step.stream, step.lag]

    def _reduce(self, step: Reduce) -> list[int]:
        words = [2, int(step.final), len(step.dsts), len(step.srcs)]
        links = self._links(step)
        for operand in (*step.dsts, *step.srcs):
            words += [self._local[operand.rank], int(operand.buffer), operand.index]
            words += self._place(operand) if links is None else [next(links)]
        return words

    def _links(self, step: Reduce) -> Iterator[int] | None:
        """Yield for each operand the number + 1 of its link, or 0 for the rank's own memory."""
        if self._routes is None:
            return None
        remote = iter(self._routes.of(step, self._rank))
        own = self._rank
        return iter([next(remote) + 1 if o.rank != own else 0 for o in (*step.dsts, *step.srcs)])

    def _place(self, operand: Operand) -> list[int]:
        """Return whether an operand lies in the host's memory, in the version that tells."""
        if self._version != DEVICE_VERSION:
            return []
        is_slot = operand.buffer is Buffer.SCRATCH
        return [int(is_slot and (operand.rank, operand.index) in self._hosted)]

    def _mask(self, flag: int) -> list[int]:
        """Return who waits for a flag of this rank, in the version that tells."""
        if self._version != DEVICE_VERSION:
            return []
        ranks = [self._local[rank] for rank in self._waiting[self._rank, flag]]
        mask = sum(1 << rank for rank in ranks)
        return [mask & 0xFFFF, mask >> 16]
