"""Programs for devices: what lies where, who is told, and what the kernel reads."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.flat import Flat
from support.programs import (
    chain_plan,
    hosted_programs,
    lowered,
    packing,
    programs,
    star,
    star_plan,
)

from blinkrun.errors import ProgramError
from blinkrun.executors import native
from blinkrun.schedule.devices import fits, hosted_slots, waiting_ranks
from blinkrun.schedule.encode import encode, encode_device
from blinkrun.schedule.ir import Addressing, Buffer, Reduce, Signal, Wait
from blinkrun.schedule.lower import lower_alltoall
from blinkrun.topology.graph import LinkKind
from blinkrun.types import Collective

ANY = [c for c in Collective if c is not Collective.BARRIER]
CHUNK = 4096


@st.composite
def with_reach(draw, drawn):
    """A program, and for every pair of ranks whether the one's device can address the other's."""
    program = draw(drawn)
    row = st.lists(st.booleans(), min_size=program.size, max_size=program.size)
    reach = [draw(row) for _ in range(program.size)]
    for rank in range(program.size):
        reach[rank][rank] = True
    return program, reach


def steps_of(program):
    for rank, own in enumerate(program.ranks):
        for channel in (*own.prologue, *own.channels):
            yield from ((rank, step) for step in channel.steps)


def operands_of(program):
    for rank, step in steps_of(program):
        if isinstance(step, Reduce):
            yield from ((rank, operand) for operand in (*step.dsts, *step.srcs))


def without_kinds(channels):
    """Channels as they are encoded: which links carry operands is left out."""
    return [
        (
            channel.part,
            [
                Reduce(s.dsts, s.srcs, s.final) if isinstance(s, Reduce) else s
                for s in channel.steps
            ],
        )
        for channel in channels
    ]


@settings(max_examples=30)
@given(with_reach(programs(max_size=5)))
def test_every_rank_can_address_what_it_touches_once_slots_are_hosted(case):
    program, reach = case
    hosted = hosted_slots(program, reach)
    within = [
        reach[rank][o.rank] or (o.buffer is Buffer.SCRATCH and (o.rank, o.index) in hosted)
        for rank, o in operands_of(program)
    ]
    assert all(within) == fits(program, reach)
    needed = {
        (o.rank, o.index)
        for rank, o in operands_of(program)
        if o.buffer is Buffer.SCRATCH and not reach[rank][o.rank]
    }
    assert hosted == needed  # no slot is hosted that need not be


@settings(max_examples=15)
@given(programs(max_size=5))
def test_where_all_reach_each_other_everything_fits_and_nothing_is_hosted(program):
    reach = [[True] * program.size] * program.size
    assert fits(program, reach)
    assert not hosted_slots(program, reach)


@settings(max_examples=30)
@given(with_reach(st.one_of(programs(max_size=5), hosted_programs(ANY))), st.integers(1, 3))
def test_the_kernel_reads_what_the_program_says(case, pieces):
    program, reach = case
    hosted = hosted_slots(program, reach)
    if program.eager:
        pieces = 1
    if program.eager and program.hosts:
        return
    waiting = {
        (rank, step.flag): {
            other
            for other, wait in steps_of(program)
            if isinstance(wait, Wait) and (wait.rank, wait.flag) == (rank, step.flag)
        }
        for rank, step in steps_of(program)
        if isinstance(step, Signal)
    }
    for rank in range(program.size):
        local = program.host_ranks(rank)
        words = encode_device(program, rank, hosted)
        flat = Flat(native.flatten(words, pieces, CHUNK), local, rank)
        steps = flat.steps()
        assert steps.prologue == program.ranks[rank].prologue
        assert without_kinds(steps.channels) == without_kinds(program.ranks[rank].channels)
        assert {flag: set(told) for flag, told in flat.told.items()} == {
            flag: ranks for (signals, flag), ranks in waiting.items() if signals == rank
        }
        assert flat.hosted <= hosted
        assert not flat.device & hosted
        head = flat.head
        assert (head["rank"], head["size"], head["all"]) == (
            local.index(rank),
            len(local),
            program.size,
        )
        assert (head["pieces"], head["chunk_bytes"]) == (pieces, CHUNK)
        assert [head[name] for name in ("collective", "root", "addressing", "shares")] == [
            program.collective,
            program.root,
            program.addressing,
            program.shares,
        ]
        assert [head[name] for name in ("slots", "slot_depth", "eager", "pipelined", "flags")] == [
            program.slots,
            program.slot_depth,
            program.eager,
            program.pipelined,
            program.flags,
        ]


@pytest.mark.parametrize("addressing", [Addressing.DIRECT, Addressing.STAGED])
def test_what_a_plan_sends_by_way_of_the_host_is_out_of_reach_whatever_devices_can(addressing):
    kinds = ("", LinkKind.STAGED.value)
    trees = packing([star(2, 0)])
    trees = replace(trees, trees=(replace(trees.trees[0], up=kinds, down=kinds),))
    plan = replace(star_plan(2), allreduce=trees)
    program = lowered(plan, Collective.ALLREDUCE, addressing=addressing)
    reach = [[True, True], [True, True]]
    assert fits(program, reach) == (addressing is Addressing.STAGED)
    assert bool(hosted_slots(program, reach)) == (addressing is Addressing.STAGED)


def test_a_rank_is_told_what_it_waits_for():
    program = lowered(chain_plan(3), Collective.BROADCAST, addressing=Addressing.STAGED)
    assert waiting_ranks(program)[0, 0] == (1,)
    assert set(waiting_ranks(program)) == {
        (rank, step.flag) for rank, step in steps_of(program) if isinstance(step, Signal)
    }


def test_words_of_a_small_program():
    program = lower_alltoall(2, Addressing.STAGED)
    assert encode_device(program, 1, {(0, 0)}).tolist() == [
        *(4, 6, 0, 1, 1, 2, 1, 4, 0, 1, 2, 0, 3, 2, 1),  # of two ranks in all; this is rank 1
        *(0, 1, 3),  # fill the slot, which stays on the device
        *(0, 0, 1, 4),
        *(2, 0, 1, 1, 1, 2, 0, 0, 1, 0, 0, 0),
        *(1, 1, 1, 0),  # rank 0 waits for it
        *(0, 1, 1, 2, 0, 1, 1, 1, 1, 1, 0, 1, 0, 1, 0),  # the rank's own block
        *(0, 1, 3),  # take from the other's slot, which is hosted
        *(0, 0, 0, 0),
        *(2, 0, 1, 1, 1, 1, 0, 0, 0, 2, 0, 1),
        *(1, 0, 1, 0),
    ]


def test_a_program_for_the_cpu_is_refused():
    program = lowered(star_plan(2), Collective.ALLREDUCE)
    with pytest.raises(ValueError, match="not encoded for devices"):
        native.flatten(encode(program, 0), 1, 0)


def test_a_rank_that_is_not_there():
    with pytest.raises(ProgramError, match="rank 2 is none of the program's 2"):
        encode_device(lowered(star_plan(2), Collective.ALLREDUCE), 2)


@pytest.mark.parametrize(
    ("pieces", "says"),
    [(0, "at least one piece"), (5000, r"flags, a device has 4096")],
)
def test_what_does_not_fit_a_device_is_refused_with_the_numbers(pieces, says):
    program = lowered(chain_plan(3), Collective.ALLREDUCE, addressing=Addressing.STAGED)
    with pytest.raises(ValueError, match=says):
        native.flatten(encode_device(program, 0), pieces, 0)


def test_more_ranks_than_a_host_has_are_refused():
    program = lowered(star_plan(33), Collective.ALLREDUCE, eager=True)
    with pytest.raises(ValueError, match="33 ranks on a host, a device has 32"):
        native.flatten(encode_device(program, 0), 1, 0)
