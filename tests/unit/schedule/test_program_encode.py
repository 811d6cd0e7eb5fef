import numpy as np
import pytest
from hypothesis import given, settings
from support.programs import hosted_programs, lowered, packing, programs, star, star_plan

from blinkrun.errors import ProgramError
from blinkrun.schedule.encode import HOSTS_VERSION, ROUTED_VERSION, VERSION, encode
from blinkrun.schedule.ir import (
    Addressing,
    Arrived,
    Buffer,
    Channel,
    Operand,
    Part,
    Program,
    RankProgram,
    Recv,
    Reduce,
    Send,
    Sent,
    Signal,
    Wait,
)
from blinkrun.schedule.lower_hosts import lower_hosts
from blinkrun.schedule.routes import Routes
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology
from blinkrun.types import Collective


class Words:
    """Reads what `encode` wrote, as the native core does."""

    def __init__(self, words):
        self.words = [int(word) for word in words]
        self.routed = self.words[0] == ROUTED_VERSION
        self.local = None  # ranks of this host, over several hosts
        self.rank = None  # whose words they are
        self.links = []  # of all operands, as they came

    def take(self, count):
        taken, self.words = self.words[:count], self.words[count:]
        assert len(taken) == count
        return taken

    def operand(self):
        rank, buffer, index = self.take(3)
        rank = rank if self.local is None else self.local[rank]
        if self.routed:
            self.links += self.take(1)
        return Operand(rank, Buffer(buffer), index)

    def step(self):
        (kind,) = self.take(1)
        if kind == 0:
            rank, flag, lag = self.take(3)
            return Wait(rank if self.local is None else self.local[rank], flag, lag)
        if kind == 1:
            return Signal(*self.take(1))
        if kind in (3, 4):
            rank, stream, buffer, index = self.take(4)
            operand = Operand(self.rank, Buffer(buffer), index)
            return (Send if kind == 3 else Recv)(operand, rank, stream)
        if kind in (5, 6):
            return (Sent if kind == 5 else Arrived)(*self.take(3))
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


@settings(max_examples=15)
@given(hosted_programs([c for c in Collective if c is not Collective.BARRIER]))
def test_over_hosts_a_rank_reads_its_own_host_by_index_and_others_by_rank(program):
    for rank in range(program.size):
        reader = Words(encode(program, rank))
        reader.rank, reader.local = rank, program.host_ranks(rank)
        header = reader.take(14)
        assert (header[0], header[5], header[-1]) == (
            HOSTS_VERSION,
            len(reader.local),
            program.size,
        )
        prologue = tuple(reader.channel() for _ in range(header[-3]))
        channels = tuple(reader.channel() for _ in range(header[-2]))
        assert not reader.words
        steps = program.ranks[rank]
        assert prologue == steps.prologue
        assert [without_kinds(c) for c in channels] == [without_kinds(c) for c in steps.channels]


def without_kinds(channel):
    """A channel as it is encoded: which links carry operands is left out."""
    steps = [
        Reduce(step.dsts, step.srcs, step.final) if isinstance(step, Reduce) else step
        for step in channel.steps
    ]
    return channel.part, steps


def test_words_of_a_small_program_over_two_hosts():
    program = lower_hosts(packing([star(2, 0)]), Collective.REDUCE, (0, 1))
    assert encode(program, 1).tolist() == [
        *(3, 2, 0, 0, 1, 1, 1, 4, 0, 1, 1, 0, 1, 2),  # one rank here, two in all
        *(0, 1, 3),  # the channel: shares [0, 1), three steps
        *(5, 0, 0, 4),  # hold until the message to rank 0 on stream 0 four chunks ago is through
        *(2, 0, 1, 1, 0, 2, 0, 0, 0, 0),  # slot 0 <- INPUT, both of this rank, 0 on its host
        *(3, 0, 0, 2, 0),  # send to rank 0 on stream 0 from slot 0
    ]


def test_an_emulated_machine_is_one_host():
    program = lower_hosts(packing([star(2, 0)]), Collective.REDUCE, (0, 1))
    with pytest.raises(ProgramError, match="an emulated machine is one host"):
        encode(program, 0, Routes(switch(2)))


def switch(size):
    """Every rank to every other: links in the order of their ends."""
    pairs = [(src, dst) for src in range(size) for dst in range(size) if src != dst]
    links = tuple(Link(src, dst, (f"{src}->{dst}",), LinkKind.NVLINK) for src, dst in pairs)
    resources = tuple(Resource(f"{src}->{dst}", 1) for src, dst in pairs)
    return Topology("switch", tuple(range(size)), links, resources, "MB/s")


@settings(max_examples=15)
@given(programs(max_size=5))
def test_every_operand_of_another_rank_names_the_link_that_carries_it(program):
    """The direction is that of the data: a destination is pushed to, a source pulled from."""
    topology = switch(program.size)
    for rank in range(program.size):
        reader = Words(encode(program, rank, Routes(topology)))
        header = reader.take(13)
        steps = [step for _ in range(sum(header[-2:])) for step in reader.channel().steps]
        assert header[0] == ROUTED_VERSION
        for reduce in (step for step in steps if isinstance(step, Reduce)):
            for number, operand in enumerate((*reduce.dsts, *reduce.srcs)):
                link = reader.links.pop(0)
                is_dst = number < len(reduce.dsts)  # a root reads and writes the same memory
                ends = (rank, operand.rank) if is_dst else (operand.rank, rank)
                if operand.rank == rank:
                    assert link == 0
                else:
                    assert (topology.links[link - 1].src, topology.links[link - 1].dst) == ends
        assert not reader.links
        assert steps == [
            step
            for channel in (*program.ranks[rank].prologue, *program.ranks[rank].channels)
            for step in channel.steps
        ]


def test_links_that_are_not_there():
    ring = switch(3)
    lame = Topology("lame", (0, 1, 2), ring.links[:-1], ring.resources[:-1], "MB/s")  # all but 2->1
    program = lowered(star_plan(3), Collective.BROADCAST, root=2)
    with pytest.raises(ProgramError, match="lame: no link from rank 2 to rank 1"):
        encode(program, 1, Routes(lame))
    assert encode(program, 0, Routes(lame))[0] == ROUTED_VERSION


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
