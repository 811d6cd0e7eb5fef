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
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from blinkrun.errors import ProgramError
from blinkrun.schedule.ir import (
    Channel,
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


def encode(program: Program, rank: Rank, routes: Routes | None = None) -> npt.NDArray[np.int32]:
    """Return the words of `rank`'s part of `program`, shape (words,); with `routes`, its links too.

    Raises
    ------
    ProgramError
        If `rank` is none of the program's, a number does not fit 31 bits, or an operand needs a
        link that `routes` lacks, or there are `routes` and several hosts.
    """
    if not 0 <= rank < program.size:
        raise ProgramError(f"rank {rank} is none of the program's {program.size}")
    if program.hosts and routes is not None:
        raise ProgramError("an emulated machine is one host")
    steps = program.ranks[rank]
    local = {other: index for index, other in enumerate(program.host_ranks(rank))}
    version = VERSION if routes is None else ROUTED_VERSION
    words = [
        HOSTS_VERSION if program.hosts else version,
        int(program.collective),
        program.root,
        int(program.addressing),
        program.shares,
        len(local),
        program.slots,
        program.slot_depth,
        int(program.eager),
        int(program.pipelined),
        program.flags,
        len(steps.prologue),
        len(steps.channels),
        *([program.size] if program.hosts else []),
    ]
    for channel in (*steps.prologue, *steps.channels):
        words += _channel_words(channel, rank, local, routes)
    if max(words) >= 2**31:
        raise ProgramError(f"program has a number beyond 31 bits ({max(words)})")
    return np.array(words, dtype=np.int32)


def _channel_words(
    channel: Channel, rank: Rank, local: Mapping[Rank, int], routes: Routes | None
) -> list[int]:
    words = [channel.part.start, channel.part.stop, len(channel.steps)]
    for step in channel.steps:
        words += _step_words(step, rank, local, routes)
    return words


def _step_words(
    step: Step, rank: Rank, local: Mapping[Rank, int], routes: Routes | None
) -> list[int]:
    match step:
        case Wait(other, flag, lag):
            return [0, local[other], flag, lag]
        case Signal(flag):
            return [1, flag]
        case Reduce():
            return _reduce_words(step, rank, local, routes)
        case Send(operand, other, stream) | Recv(operand, other, stream):
            kind = 3 if isinstance(step, Send) else 4
            return [kind, other, stream, int(operand.buffer), operand.index]
    kind = 5 if isinstance(step, Sent) else 6
    return [kind, step.rank, step.stream, step.lag]


def _reduce_words(
    step: Reduce, rank: Rank, local: Mapping[Rank, int], routes: Routes | None
) -> list[int]:
    operands = [[local[o.rank], int(o.buffer), o.index] for o in (*step.dsts, *step.srcs)]
    if routes is not None:
        for words, link in zip(operands, _links(step, rank, routes), strict=True):
            words.append(link)
    counts = [len(step.dsts), len(step.srcs)]
    return [2, int(step.final), *counts, *(word for words in operands for word in words)]


def _links(step: Reduce, rank: Rank, routes: Routes) -> list[int]:
    """Return for each operand the number + 1 of its link, or 0 for the rank's own memory."""
    remote = iter(routes.of(step, rank))
    return [next(remote) + 1 if o.rank != rank else 0 for o in (*step.dsts, *step.srcs)]
