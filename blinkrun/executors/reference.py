"""The living definition of what a program does: all ranks of all hosts in one process, in numpy.

Slow and simple. Every other executor must give the same bytes on integers, and on floats the
same order of operations.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blinkrun.errors import ProgramError, UsageError
from blinkrun.executors import numerics
from blinkrun.executors.mailbox import Mailbox
from blinkrun.executors.numerics import Array
from blinkrun.schedule.chunking import Chunks, chunks_of
from blinkrun.schedule.ir import (
    Arrived,
    Buffer,
    Channel,
    Message,
    Operand,
    Program,
    Recv,
    Reduce,
    Send,
    Sent,
    Signal,
    Wait,
)
from blinkrun.schedule.promise import location, moves_only
from blinkrun.schedule.streams import stream_of
from blinkrun.types import Collective, Op, Rank

CHUNK_ELEMENTS = 1 << 14


@dataclass(frozen=True, slots=True)
class Call:
    """What a collective is called with, beside its buffers.

    Attributes
    ----------
    op : Op
        Reduction; broadcast and allgather take no notice of it, nor of the scales.
    prescale, postscale : float
        Factors of every contribution and of the result.
    chunk_elements : int
        Elements of a chunk, where the program is cut into chunks.
    in_place : bool
        Whether INPUT and OUTPUT are the same memory.
    seed : int, optional
        Ranks and channels take steps in the random order that it gives; in turn by default.
    """

    op: Op = Op.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    chunk_elements: int = CHUNK_ELEMENTS
    in_place: bool = False
    seed: int | None = None


def run(
    program: Program,
    inputs: Sequence[Array],
    call: Call = Call(),
    outputs: Sequence[Array] | None = None,
) -> list[Array]:
    """Return every rank's OUTPUT after `program` has run on `inputs`.

    Parameters
    ----------
    program : Program
        What to run.
    inputs : sequence of array
        One per rank, shape (``program.input_blocks`` * count,), all of one dtype; left unchanged.
    call : Call
        Operation, scales, chunks, order of steps.
    outputs : sequence of array, optional
        What the OUTPUTs hold before, shape (``program.output_blocks`` * count,); left unchanged.
        Zeros by default. In place, the ranks' inputs lie in them.

    Returns
    -------
    list of array
        One per rank, whether the collective writes it or not.

    Raises
    ------
    UsageError
        If the arrays do not fit the program or each other.
    ProgramError
        If the ranks wait for each other for ever.

    Examples
    --------
    >>> from blinkrun.schedule.lower import lower_eager
    >>> program = lower_eager(Collective.ALLREDUCE, 2)
    >>> run(program, [np.array([1, 2]), np.array([10, 20])])
    [array([11, 22]), array([11, 22])]
    """
    world = _World(program, inputs, call, outputs)
    world.run()
    return [world.buffers[rank, Buffer.OUTPUT] for rank in range(program.size)]


@dataclass(slots=True)
class _Lane:
    """A channel on its way: the next step and chunk."""

    rank: Rank
    channel: Channel
    chunks: Chunks
    step: int = 0
    chunk: int = 0

    @property
    def is_done(self) -> bool:
        return self.chunk == self.chunks.num_chunks

    def span(self) -> tuple[int, int]:
        """Elements of the current chunk, within a block."""
        return self.chunks.span(self.chunk)

    def advance(self) -> None:
        self.step += 1
        if self.step == len(self.channel.steps):
            self.step = 0
            self.chunk += 1


class _World:
    """The memory and flags of all ranks."""

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Array],
        call: Call,
        outputs: Sequence[Array] | None,
    ) -> None:
        self.program = program
        self.call = call
        self.count = _common_count(program, inputs)
        self.buffers = _lay_out(program, inputs, outputs, self.count, call.in_place)
        self.itemsize = inputs[0].dtype.itemsize
        self.slots: dict[tuple[Rank, int, int], Array] = {}
        self.flags: dict[tuple[Rank, int], int] = {}
        self.order = None if call.seed is None else random.Random(call.seed)
        self.mail = Mailbox(self.order)

    def run(self) -> None:
        prologues = [
            self._lane(rank, channel)
            for rank, steps in enumerate(self.program.ranks)
            for channel in steps.prologue
        ]
        self._run_lanes(prologues)
        channels = [
            self._lane(rank, channel)
            for rank, steps in enumerate(self.program.ranks)
            for channel in steps.channels
        ]
        self._run_lanes(channels)
        self.mail.move(every=True)  # no rank leaves before its messages are through

    def _lane(self, rank: Rank, channel: Channel) -> _Lane:
        chunk = self.call.chunk_elements if self.program.pipelined else 0
        chunks = chunks_of(channel.part, self.program.shares, self.count, self.itemsize, chunk)
        return _Lane(rank, channel, chunks)

    def _run_lanes(self, lanes: list[_Lane]) -> None:
        """Let every lane take a step in turn, or some in random order, until all are through."""
        running = [lane for lane in lanes if not lane.is_done]
        while running:
            if self.order is not None:
                self.order.shuffle(running)
            went = sum(self._take_steps(lane) for lane in running) > 0
            went |= self.mail.move()
            if not went and not self.mail.move(every=True):
                stuck = running[0]
                step = stuck.channel.steps[stuck.step]
                raise ProgramError(
                    f"rank {stuck.rank} waits for ever at chunk {stuck.chunk}, step {stuck.step}: "
                    f"{step}; run verify() on this program"
                )
            running = [lane for lane in running if not lane.is_done]

    def _take_steps(self, lane: _Lane) -> int:
        """Return how many steps the lane took: one, or up to a random number; 0 if it is held."""
        limit = 1 if self.order is None else self.order.randint(1, 6)
        taken = 0
        while taken < limit and not lane.is_done and self._take_step(lane):
            taken += 1
        return taken

    def _take_step(self, lane: _Lane) -> bool:
        """Take the lane's next step; False if a wait holds it."""
        step = lane.channel.steps[lane.step]
        match step:
            case Wait(rank, flag, lag):
                if self.flags.get((rank, flag), 0) < lane.chunk + 1 - lag:
                    return False
            case Signal(flag):
                self.flags[lane.rank, flag] = lane.chunk + 1
            case Reduce():
                self._reduce(step, lane)
            case _:
                if not self._message(step, lane):
                    return False
        lane.advance()
        return True

    def _message(self, step: Message, lane: _Lane) -> bool:
        """Start a message, or return whether the one that the lane waits for is through."""
        stream = stream_of(lane.rank, step)
        match step:
            case Send(operand):
                self.mail.send(stream, self._view(operand, lane))
            case Recv(operand):
                self.mail.recv(stream, self._view(operand, lane))
            case Sent(_, _, lag):
                return lane.chunk < lag or self.mail.is_sent(stream, lane.chunk - lag)
            case Arrived(_, _, lag):
                return lane.chunk < lag or self.mail.has_arrived(stream, lane.chunk - lag)
        return True

    def _reduce(self, step: Reduce, lane: _Lane) -> None:
        if moves_only(self.program.collective):
            source = self._view(step.srcs[0], lane).copy()
            numerics.store([self._view(dst, lane) for dst in self._others(step)], source)
            return
        call = self.call
        total: Array | None = None
        for src in step.srcs:
            term = numerics.load(self._view(src, lane))
            if src.buffer is Buffer.INPUT:
                term = numerics.scale(term, call.prescale)
            total = term if total is None else numerics.combine(call.op, total, term)
        assert total is not None
        if step.final:
            total = numerics.finish(call.op, total, self.program.size, call.postscale)
        numerics.store([self._view(dst, lane) for dst in step.dsts], total)

    def _others(self, step: Reduce) -> list[Operand]:
        """The destinations that are not the source itself."""
        collective, in_place = self.program.collective, self.call.in_place
        source = location(step.srcs[0], collective, in_place=in_place)
        return [d for d in step.dsts if location(d, collective, in_place=in_place) != source]

    def _view(self, operand: Operand, lane: _Lane) -> Array:
        start, stop = lane.span()
        if operand.buffer is not Buffer.SCRATCH:
            at = operand.index * self.count
            return self.buffers[operand.rank, operand.buffer][at + start : at + stop]
        position = lane.chunk % self.program.slot_depth
        key = (operand.rank, operand.index, position)
        if key not in self.slots:
            dtype = self.buffers[operand.rank, Buffer.OUTPUT].dtype
            self.slots[key] = np.zeros(lane.chunks.chunk_elements, dtype)
        return self.slots[key][: stop - start]


def _common_count(program: Program, inputs: Sequence[Array]) -> int:
    """Return the elements of a block, which all ranks must agree on."""
    shapes = {(array.shape, array.dtype) for array in inputs}
    if len(inputs) != program.size or len(shapes) != 1:
        raise UsageError(
            f"{program.size} ranks need as many arrays of one shape and dtype, got {len(inputs)}: "
            f"{', '.join(f'{a.dtype}{a.shape}' for a in inputs)}"
        )
    numerics.dtype_of(inputs[0])
    count, rest = divmod(inputs[0].size, program.input_blocks)
    if rest or inputs[0].ndim != 1:
        raise UsageError(
            f"input of shape {inputs[0].shape} does not hold {program.input_blocks} equal blocks"
        )
    return count


def _lay_out(
    program: Program,
    inputs: Sequence[Array],
    outputs: Sequence[Array] | None,
    count: int,
    in_place: bool,
) -> dict[tuple[Rank, Buffer], Array]:
    """Return copies of the callers' buffers, aliased where the call is in place."""
    buffers: dict[tuple[Rank, Buffer], Array] = {}
    for rank, given in enumerate(inputs):
        source = given.copy()
        if outputs is None:
            target = np.zeros(program.output_blocks * count, given.dtype)
        else:
            target = outputs[rank].copy()
        if target.shape != (program.output_blocks * count,) or target.dtype != given.dtype:
            raise UsageError(
                f"output of rank {rank} is {target.dtype}{target.shape}, "
                f"need {given.dtype}({program.output_blocks * count},)"
            )
        own = slice(rank * count, (rank + 1) * count)
        if in_place and program.collective is Collective.REDUCESCATTER:
            target = source[own]
        elif in_place:
            held = target[own] if program.collective is Collective.ALLGATHER else target
            held[...] = source
            source = held
        buffers[rank, Buffer.INPUT] = source
        buffers[rank, Buffer.OUTPUT] = target
    return buffers
