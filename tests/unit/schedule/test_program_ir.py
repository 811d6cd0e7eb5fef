from dataclasses import replace

import pytest
from support.programs import lowered, star_plan

from blinkrun.errors import ProgramError
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
from blinkrun.types import Collective

OUT = Operand(0, Buffer.OUTPUT)
IN = Operand(0, Buffer.INPUT)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Part(1, 1), r"part \[1, 1\) is empty"),
        (lambda: Part(-1, 1), r"part \[-1, 1\)"),
        (lambda: Operand(-1, Buffer.INPUT), "operand has rank -1"),
        (lambda: Operand(0, Buffer.INPUT, -2), "index -2"),
        (lambda: Wait(0, -1), "wait for flag -1"),
        (lambda: Wait(0, 0, -1), "lag -1"),
        (lambda: Signal(-1), "flag -1 is negative"),
        (lambda: Reduce((), (IN,)), "at least one source and one destination"),
        (lambda: Reduce((OUT,), ()), "at least one source and one destination"),
        (lambda: Reduce((OUT, OUT), (IN,)), "writes the same operand twice"),
        (lambda: Channel(Part(0, 1), ()), "without steps"),
        (lambda: Reduce((OUT,), (IN,), via=("",)), "names 1 links"),
        (lambda: Send(IN, -1), "send to rank -1"),
        (lambda: Recv(OUT, 1, -1), "receive from rank 1, stream -1"),
        (lambda: Sent(1, -2), "sent to rank 1, stream -2"),
        (lambda: Arrived(1, lag=-1), "lag -1"),
    ],
)
def test_values_that_make_no_sense_cannot_be_built(make, says):
    with pytest.raises(ProgramError, match=says):
        make()


def program(*steps, **changes):
    fields = {"shares": 1, "collective": Collective.ALLREDUCE, "addressing": Addressing.STAGED}
    fields |= {"root": 0, "ranks": 2, "slots": 1} | changes
    channel = Channel(changes.pop("part", Part(0, 1)), steps or (Reduce((OUT,), (IN,)),))
    kind = fields.pop("kind", "channels")
    fields.pop("part", None)
    ranks = (RankProgram(**{kind: (channel,)}), *[RankProgram()] * (fields.pop("ranks") - 1))
    return Program(**fields, ranks=ranks)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: program(kind="prologue"), "rank 0 has a prologue, which only eager"),
        (lambda: program(shares=0), "shares 0"),
        (lambda: program(slots=-1), "slots -1"),
        (lambda: program(slot_depth=0), "depth 0"),
        (lambda: program(root=2), "root 2 is none of 2 ranks"),
        (lambda: program(part=Part(0, 2)), "beyond the 1 shares"),
        (lambda: program(Wait(2, 0)), "waits for rank 2 of 2"),
        (
            lambda: program(Reduce((OUT,), (Operand(2, Buffer.SCRATCH),))),
            r"no SCRATCH\[0\] at rank 2",
        ),
        (lambda: program(Reduce((OUT,), (Operand(0, Buffer.SCRATCH, 1),))), r"no SCRATCH\[1\]"),
        (lambda: program(Reduce((OUT,), (Operand(0, Buffer.INPUT, 1),))), r"no INPUT\[1\]"),
        (lambda: program(Reduce((OUT,), (Operand(1, Buffer.INPUT),))), "private memory of rank 1"),
        (lambda: program(hosts=(0,)), r"2 ranks on the hosts \(0,\)"),
        (lambda: program(hosts=(1, 0)), "not numbered from 0 in the order of first ranks"),
        (lambda: program(Wait(1, 0), hosts=(0, 1)), "flag of rank 1, another host's"),
        (
            lambda: program(Reduce((OUT,), (Operand(1, Buffer.SCRATCH),)), hosts=(0, 1)),
            "memory of rank 1 on another host",
        ),
        (lambda: program(Send(OUT, 1)), "a message with rank 1 of the same host"),
        (lambda: program(Arrived(1), hosts=(0, 0)), "a message with rank 1 of the same host"),
        (lambda: program(Sent(2), hosts=(0, 1)), "a message with rank 2 of 2"),
        (
            lambda: program(Recv(Operand(1, Buffer.OUTPUT), 1), hosts=(0, 1)),
            "a message in memory of rank 1",
        ),
        (lambda: program(Send(Operand(0, Buffer.SCRATCH, 1), 1), hosts=(0, 1)), "no SCRATCH"),
    ],
)
def test_programs_that_name_what_is_not_there_cannot_be_built(make, says):
    assert program(kind="prologue", eager=True).size == 2
    with pytest.raises(ProgramError, match=says):
        make()


def test_a_program_needs_a_rank():
    with pytest.raises(ProgramError, match="at least one rank"):
        replace(program(), ranks=())


def test_ranks_of_a_host_need_not_follow_each_other():
    made = program(ranks=4, hosts=(0, 1, 0, 1))
    assert [made.host_ranks(rank) for rank in range(4)] == [(0, 2), (1, 3), (0, 2), (1, 3)]
    assert program(ranks=3).host_ranks(1) == (0, 1, 2)


def test_blocks_and_flags_follow_from_the_program():
    plan = star_plan(3)
    blocks = {
        collective: (made.input_blocks, made.output_blocks)
        for collective in Collective
        for made in [lowered(plan, collective)]
    }
    assert blocks.pop(Collective.ALLTOALL) == (3, 3)
    assert blocks.pop(Collective.REDUCESCATTER) == (3, 1)
    assert blocks.pop(Collective.ALLGATHER) == (1, 3)
    assert set(blocks.values()) == {(1, 1)}
    assert program(Signal(4), Wait(1, 2)).flags == 5
    assert lowered(plan, Collective.BARRIER).flags == 0
