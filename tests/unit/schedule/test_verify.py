"""One fault each, and the words in which `verify` says what and where it is."""

import time
from dataclasses import replace

import pytest
from support.programs import chain, packing, star, star_plan

from blinkrun.errors import ProgramError
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
from blinkrun.schedule.lower import lower, lower_allreduce, lower_eager
from blinkrun.schedule.verify import verify
from blinkrun.types import Collective

DIRECT, STAGED = Addressing.DIRECT, Addressing.STAGED
WHOLE = Part(0, 1)


def inp(rank, block=0):
    return Operand(rank, Buffer.INPUT, block)


def out(rank, block=0):
    return Operand(rank, Buffer.OUTPUT, block)


def slot(rank, index=0):
    return Operand(rank, Buffer.SCRATCH, index)


def copy(dst, src, final=False):
    return Reduce((dst,), (src,), final)


def make(*ranks, collective=Collective.BROADCAST, part=WHOLE, **changes):
    """A program of ranks, each a list of channels, each a list of steps."""
    fields = {"root": 0, "addressing": DIRECT, "shares": part.stop, "slots": 2} | changes
    made = tuple(
        RankProgram(channels=tuple(Channel(part, tuple(steps)) for steps in channels))
        for channels in ranks
    )
    return Program(collective, ranks=made, **fields)


def refuse(program, says, **options):
    with pytest.raises(ProgramError, match=says):
        verify(program, **options)


def test_a_right_broadcast_by_hand():
    verify(make([[copy(out(0), inp(0)), Wait(1, 0)]], [[copy(out(1), inp(0)), Signal(0)]]))


def test_the_root_must_stay_until_it_has_been_read():
    program = make([[copy(out(0), inp(0))]], [[copy(out(1), inp(0))]])
    refuse(
        program,
        r"^rank 1, channel 0, step 0, chunk 0: touches INPUT\[0\] of rank 0, which may have left "
        r"by then; rank 0 must wait .* \(broadcast out of place, part \[0, 1\) in 1 chunks\)$",
    )
    refuse(program, r"touches OUTPUT\[0\] of rank 0.*in place", in_place=[True])


def test_a_rank_without_channels_may_leave_at_once():
    program = make(
        [[copy(out(0), inp(0)), copy(out(1), inp(0))]],
        [],
    )
    refuse(program, r"rank 0, channel 0, step 1, chunk 0: touches OUTPUT\[0\] of rank 1")


def test_reading_while_it_is_written():
    program = make(
        [[copy(out(0), inp(0)), Wait(1, 0)]],
        [[copy(out(1), out(0)), Signal(0)]],
    )
    refuse(
        program,
        r"rank 1, channel 0, step 0, chunk 0: reads OUTPUT\[0\] of rank 0 while it may be written "
        "by rank 0, channel 0, step 0, chunk 0; let one wait for the other",
        in_place=[False],
    )


def test_writing_while_it_is_read():
    program = make(
        [[copy(out(0), inp(0)), Signal(0), Wait(1, 0)]],
        [[Wait(0, 0), copy(out(1), out(0)), Signal(0)], [Wait(0, 0), copy(out(0), inp(0))]],
    )
    refuse(
        program, r"rank 1, channel 1, step 1.* writes OUTPUT\[0\] of rank 0 while it may be read"
    )


def test_two_writers():
    program = make([[copy(out(0), inp(0))], [copy(out(0), inp(0))]], [[copy(out(1), inp(0))]])
    refuse(program, r"rank 0, channel 1, .* writes OUTPUT\[0\] of rank 0 while it may be written")


def test_a_deadlock_names_who_waits_for_what():
    program = make(
        [[copy(out(0), inp(0)), Wait(1, 0), Signal(0)]],
        [[Wait(0, 0), copy(out(1), inp(0)), Signal(0)]],
    )
    refuse(
        program,
        "rank 0, channel 0, step 1, chunk 0: waits for ever for flag 0 of rank 1 to reach 1; "
        "it stops at 0",
    )


def test_a_slot_that_is_filled_again_too_early():
    right = lower_allreduce(packing([star(2, 0)]), 2, STAGED)
    put, take = right.ranks[1].channels
    late = (replace(put.steps[0], lag=5), *put.steps[1:])
    ranks = (right.ranks[0], RankProgram(channels=(replace(put, steps=late), take)))
    refuse(
        replace(right, ranks=ranks),
        r"reads SCRATCH\[0\] of rank 0 while it may be written by rank 1, .* chunk 4",
    )
    verify(replace(right, ranks=ranks), chunks=[1, 4])  # it takes a fifth chunk to see it


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([copy(out(0), slot(0))], r"reads SCRATCH\[0\] of rank 0 before anything was written"),
        ([Reduce((out(0),), (inp(0), inp(0)), True)], "counts rank 0 a second time"),
        ([Reduce((out(0),), (inp(0),), True)], "finishes a result that has only rank 0"),
        ([Reduce((out(0),), (inp(0), inp(1)))], "OUTPUT.0. of rank 0, chunk 0 is never finished"),
        ([copy(out(0), inp(0))], "ends with rank 0, not with ranks 0, 1"),
        (
            [Reduce((out(0),), (inp(0), inp(1)), True), copy(out(0), out(0), True)],
            "finishes a result that is finished already",
        ),
        (
            [Reduce((slot(0),), (inp(0), inp(1)), True), Reduce((out(0),), (slot(0), inp(0)))],
            "counts rank 0 a second time",
        ),
    ],
)
def test_sums_that_do_not_add_up(steps, says):
    leave = [Wait(0, 0)]
    program = make([[*steps, Signal(0)]], [leave], collective=Collective.REDUCE)
    refuse(program, says)


def test_blocks_are_not_mixed():
    mixed = Reduce((out(0),), (inp(0, 0), inp(1, 1)), True)
    program = make([[mixed]], [[copy(out(1), inp(1, 1))]], collective=Collective.REDUCESCATTER)
    refuse(program, r"adds block 1 of INPUT\[1\] of rank 1 to block 0")
    wrong = Reduce((out(0),), (inp(0, 1), inp(1, 1)), True)
    other = Reduce((out(1),), (inp(0, 1), inp(1, 1)), True)
    both = make(
        [[wrong, Signal(0), Wait(1, 0)]],
        [[other, Signal(0), Wait(0, 0)]],
        collective=Collective.REDUCESCATTER,
    )
    refuse(both, "ends with Value.*not with block 0", in_place=[False])


def test_in_place_an_input_is_gone_once_its_output_is_written():
    steps = [copy(out(0), slot(0)), copy(slot(0, 1), inp(0))]
    program = make([[copy(slot(0), inp(0)), *steps]], collective=Collective.BROADCAST)
    verify(program, in_place=[False])
    refuse(program, r"reads INPUT\[0\] of rank 0 after it was overwritten in place")


def test_ranks_that_round_differently():
    eager = lower_eager(Collective.ALLREDUCE, 2)
    own = Reduce((out(0),), (inp(0), slot(1)), final=True)
    changed = replace(eager.ranks[0], channels=(Channel(WHOLE, (own,)),))
    refuse(
        replace(eager, ranks=(changed, eager.ranks[1])),
        "ranks add in different orders or round at different points",
    )


# ---- what can be seen without running ----------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "collective", "says"),
    [
        ([[[copy(inp(0), out(0))]]], Collective.REDUCE, "writes INPUT of rank 0"),
        (
            [[[copy(out(0), inp(0), True)]]],
            Collective.BROADCAST,
            "broadcast has no result to finish",
        ),
        ([[[copy(out(0), inp(0))]]], Collective.BARRIER, "a barrier moves nothing"),
        (
            [[[copy(out(0), inp(1))]], []],
            Collective.BROADCAST,
            "rank 1 gives no INPUT to broadcast",
        ),
        ([[[copy(out(1), inp(1))]], []], Collective.REDUCE, "rank 1 gives no OUTPUT to reduce"),
        (
            [[[Signal(0)], [Signal(0)]]],
            Collective.BARRIER,
            "rank 0, channel 1, step 0.* two places",
        ),
        ([[[Wait(0, 3)]]], Collective.BARRIER, "flag 3 of rank 0, which nothing signals"),
        ([[[Signal(0)]]], Collective.REDUCE, r"OUTPUT\[0\] of rank 0 gets 0 of 1 shares"),
    ],
)
def test_faults_that_show_without_a_run(ranks, collective, says):
    refuse(make(*ranks, collective=collective), says)


def test_a_flag_counts_the_chunks_of_one_part():
    channels = (Channel(Part(0, 1), (Signal(0),)), Channel(Part(1, 2), (Wait(0, 0),)))
    program = Program(Collective.BARRIER, 0, DIRECT, 2, (RankProgram(channels=channels),))
    refuse(program, r"counts the chunks of \[0, 1\), not of \[1, 2\)")


@pytest.mark.parametrize(
    ("parts", "src", "says"),
    [
        (
            [Part(0, 2), Part(1, 3)],
            inp(0),
            r"INPUT.0. .*overlapping parts \[0, 2\), \[1, 3\)|OUTPUT",
        ),
        (
            [Part(0, 1), Part(1, 3)],
            slot(0),
            r"slot 0 of rank 0 is shared by parts \[0, 1\), \[1, 3\)",
        ),
    ],
)
def test_parts_keep_apart(parts, src, says):
    channels = tuple(
        Channel(
            part,
            (copy(slot(0), inp(0)), copy(out(0), src)) if src == slot(0) else (copy(out(0), src),),
        )
        for part in parts
    )
    program = Program(
        Collective.BROADCAST, 0, DIRECT, 3, (RankProgram(channels=channels),), slots=1
    )
    refuse(program, says)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ((Signal(0),), "a prologue runs before ranks meet, it cannot use flags"),
        ((copy(slot(1), inp(0)),), "touches memory of rank 1 before ranks have met"),
        (
            (copy(slot(0), out(0)),),
            r"rank 0, prologue channel 0, step 0, chunk 0: reads OUTPUT\[0\]",
        ),
    ],
)
def test_prologues_keep_to_themselves(steps, says):
    eager = lower_eager(Collective.ALLREDUCE, 2)
    changed = replace(eager.ranks[0], prologue=(Channel(WHOLE, steps),))
    refuse(replace(eager, ranks=(changed, eager.ranks[1])), says)


def test_a_prologue_may_serve_a_part_that_no_channel_has():
    eager = lower_eager(Collective.REDUCESCATTER, 2)
    halves = replace(eager, shares=2, slots=3)
    twice = [
        RankProgram(
            *(tuple(replace(c, part=Part(0, 2)) for c in own) for own in (r.prologue, r.channels))
        )
        for r in eager.ranks
    ]
    verify(replace(halves, ranks=tuple(twice)))
    # Rank 0 keeps half of a block that it has not put anywhere else.
    put = Channel(Part(0, 1), (copy(slot(0, 2), inp(0, 1)),))
    more = replace(twice[0], prologue=(put,))
    refuse(replace(halves, ranks=(more, twice[1])), "before anything was written there")


def test_only_linked_ranks_are_addressed():
    program = lower_allreduce(packing([chain(3, 0)]), 3, DIRECT)
    links = {(0, 1), (1, 0), (1, 2), (2, 1)}
    verify(program, links=links)
    refuse(program, "addresses rank 2, but no link 1->2 is given", links=links - {(1, 2)})
    refuse(program, "rank 2, .* addresses rank 1, but no link 2->1", links=links - {(2, 1)})


@pytest.mark.parametrize("addressing", Addressing)
@pytest.mark.parametrize("collective", Collective)
def test_sixteen_ranks_take_less_than_a_second(collective, addressing):
    program = lower(star_plan(16), collective, addressing=addressing)
    start = time.process_time()
    verify(program)
    assert time.process_time() - start < 1
