import numpy as np
import pytest
from hypothesis import given, settings
from support.programs import lowered, programs, star_plan

from blinkrun.errors import ProgramError
from blinkrun.schedule.encode import VERSION, encode
from blinkrun.schedule.ir import (
    Addressing,
    Buffer,
    Channel,
    Operand,
    Part,
    Program,
    RankProgram,
    Reduce,
    Signal,
    Wait,
)
from blinkrun.types import Collective


class Words:
    """Reads what `encode` wrote, as the native core does."""

    def __init__(self, words):
        self.words = [int(word) for word in words]

    def take(self, count):
        taken, self.words = self.words[:count], self.words[count:]
        assert len(taken) == count
        return taken

    def operand(self):
        rank, buffer, index = self.take(3)
        return Operand(rank, Buffer(buffer), index)

    def step(self):
        (kind,) = self.take(1)
        if kind == 0:
            return Wait(*self.take(3))
        if kind == 1:
            return Signal(*self.take(1))
        assert kind == 2
        final, dsts, srcs = self.take(3)
        operands = [self.operand() for _ in range(dsts + srcs)]
        return Reduce(tuple(operands[:dsts]), tuple(operands[dsts:]), bool(final))

    def channel(self):
        start, stop, steps = self.take(3)
        return Channel(Part(start, stop), tuple(self.step() for _ in range(steps)))


def decode(words):
    reader = Words(words)
    header = reader.take(13)
    prologue = tuple(reader.channel() for _ in range(header[-2]))
    channels = tuple(reader.channel() for _ in range(header[-1]))
    assert not reader.words
    return header, RankProgram(prologue, channels)


@settings(max_examples=15)
@given(programs(max_size=5))
def test_a_rank_reads_back_what_was_written(program):
    for rank in range(program.size):
        words = encode(program, rank)
        assert words.dtype == np.int32
        header, steps = decode(words)
        assert steps == program.ranks[rank]
        assert header[:-2] == [
            VERSION,
            program.collective,
            program.root,
            program.addressing,
            program.shares,
            program.size,
            program.slots,
            program.slot_depth,
            program.eager,
            program.pipelined,
            program.flags,
        ]


def test_words_of_a_small_program():
    program = lowered(star_plan(2), Collective.BROADCAST)
    assert encode(program, 1).tolist() == [
        *(1, 1, 0, 0, 1, 2, 0, 1, 0, 0, 1, 0, 1),  # header: one channel, no prologue
        *(0, 1, 2),  # the channel: shares [0, 1), two steps
        *(2, 0, 1, 1, 1, 1, 0, 0, 0, 0),  # OUTPUT of rank 1 <- INPUT of rank 0
        *(1, 0),  # signal flag 0
    ]


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_is_not_there(rank):
    with pytest.raises(ProgramError, match=f"rank {rank} is none of the program's 2"):
        encode(lowered(star_plan(2), Collective.ALLREDUCE), rank)


def test_numbers_must_fit_31_bits():
    copy = Reduce((Operand(0, Buffer.OUTPUT),), (Operand(0, Buffer.INPUT),), final=True)
    ranks = (RankProgram(channels=(Channel(Part(0, 2**31), (copy,)),)),)
    program = Program(Collective.ALLREDUCE, 0, Addressing.DIRECT, 2**31, ranks)
    with pytest.raises(ProgramError, match="31 bits"):
        encode(program, 0)
