from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import (
    chain,
    chain_plan,
    joint,
    lowered,
    packing,
    plan_of,
    plans,
    star,
    star_plan,
)

from blinkrun.errors import ProgramError
from blinkrun.planner.plan import Plan, PlannedPacking, PlannedTree
from blinkrun.schedule.ir import Addressing, Buffer, Operand, Part, Reduce, Signal, Wait
from blinkrun.schedule.lower import (
    lower_allgather,
    lower_allreduce,
    lower_alltoall,
    lower_barrier,
    lower_broadcast,
    lower_reduce,
    lower_reducescatter,
)
from blinkrun.schedule.lower_builder import MAX_SHARES
from blinkrun.schedule.verify import verify
from blinkrun.types import Collective

DIRECT, STAGED = Addressing.DIRECT, Addressing.STAGED
MOVING = [collective for collective in Collective if collective is not Collective.BARRIER]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("addressing", Addressing)
@pytest.mark.parametrize("collective", Collective)
@settings(max_examples=8)
@given(st.data())
def test_what_is_lowered_verifies(collective, addressing, eager, data):
    plan = data.draw(plans())
    root = data.draw(st.integers(0, plan.size - 1))
    lowered(plan, collective, root=root, addressing=addressing, eager=eager)


@pytest.mark.parametrize("size", range(1, 7))
@pytest.mark.parametrize("addressing", Addressing)
@pytest.mark.parametrize("make", [star_plan, chain_plan])
def test_stars_and_chains_of_every_size_verify(size, addressing, make):
    for collective in Collective:
        for root in range(size) if collective.is_rooted else [0]:
            lowered(make(size), collective, root=root, addressing=addressing)
            lowered(make(size), collective, root=root, eager=True)


@settings(max_examples=8)
@given(plans(max_size=5), st.sampled_from(MOVING), st.sampled_from(Addressing))
def test_any_number_of_chunks_verifies(plan, collective, addressing):
    program = lowered(plan, collective, addressing=addressing)
    verify(program, chunks=(1, 2, 3, 5, 9, 11))


@settings(max_examples=8)
@given(plans(min_size=2), st.integers(1, 3), st.sampled_from([STAGED, DIRECT]))
def test_any_slot_depth_verifies(plan, depth, addressing):
    size = plan.size
    verify(lower_allreduce(plan.allreduce, size, addressing, slot_depth=depth))
    verify(lower_broadcast(plan.broadcast[1], size, 1, addressing, slot_depth=depth))
    verify(lower_reduce(plan.reduce[1], size, 1, addressing, slot_depth=depth))
    verify(lower_allgather(plan.allgather, size, addressing, slot_depth=depth))
    verify(lower_reducescatter(plan.reducescatter, size, addressing, slot_depth=depth))
    verify(lower_alltoall(size, addressing, slot_depth=depth))


@settings(max_examples=8)
@given(plans(), st.sampled_from(MOVING), st.sampled_from(Addressing))
def test_lowering_is_a_function(plan, collective, addressing):
    again = Plan.from_json(plan.to_json())
    assert lowered(plan, collective, addressing=addressing) == lowered(
        again, collective, addressing=addressing
    )


def reduces(program, rank):
    channels = program.ranks[rank].channels
    return [step for channel in channels for step in channel.steps if isinstance(step, Reduce)]


@pytest.mark.parametrize("size", [2, 3, 4, 16])
def test_a_star_is_one_fused_step_at_each_root(size):
    program = lowered(star_plan(size), Collective.ALLREDUCE)
    ranks = range(size)
    assert not program.pipelined
    assert (program.flags, program.slots) == (1, 0)
    for rank, steps in enumerate(program.ranks):
        own, *others = steps.channels
        (fused, signal) = own.steps
        assert isinstance(fused, Reduce)
        assert fused.srcs == tuple(Operand(r, Buffer.INPUT) for r in ranks)
        assert set(fused.dsts) == {Operand(r, Buffer.OUTPUT) for r in ranks}
        assert fused.dsts[0].rank == rank
        assert fused.final
        assert signal == Signal(0)
        assert [channel.steps for channel in others] == [
            (Wait((rank + turn) % size, 0),) for turn in range(1, size)
        ]


def test_two_staged_ranks_exchange_through_one_slot_each():
    program = lowered(star_plan(2), Collective.ALLREDUCE, addressing=STAGED)
    put, reduce, take = program.ranks[0].channels
    slot_at = {rank: Operand(rank, Buffer.SCRATCH) for rank in (0, 1)}
    mine, result = Operand(0, Buffer.INPUT), Operand(0, Buffer.OUTPUT)
    assert (program.slots, program.slot_depth, program.pipelined) == (1, 4, True)
    assert put.part == take.part == Part(1, 2)
    assert reduce.part == Part(0, 1)
    assert put.steps[1] == Reduce((slot_at[1],), (mine,))
    assert reduce.steps[1] == Reduce((result, slot_at[0]), (mine, slot_at[0]), final=True)
    assert take.steps[1] == Reduce((result,), (slot_at[1],))


@pytest.mark.parametrize("addressing", Addressing)
def test_deep_trees_go_up_and_down_in_channels_of_their_own(addressing):
    program = lower_allreduce(packing([chain(4, 0)]), 4, addressing)
    verify(program)
    assert program.pipelined
    assert program.name == "trees"
    assert [len(steps.channels) for steps in program.ranks] == (
        [1, 2, 2, 1] if addressing is DIRECT else [1, 2, 2, 2]
    )


@settings(max_examples=8)
@given(plans(min_size=2), st.sampled_from(Addressing), st.data())
def test_sources_are_added_in_the_order_of_ranks(plan, addressing, data):
    program = lowered(plan, Collective.ALLREDUCE, addressing=addressing)
    if addressing is DIRECT:
        for rank in range(plan.size):
            for step in reduces(program, rank):
                assert [src.rank for src in step.srcs] == sorted(src.rank for src in step.srcs)


@settings(max_examples=8)
@given(plans(min_size=2), st.sampled_from(Addressing))
def test_reduce_leaves_other_outputs_alone(plan, addressing):
    program = lowered(plan, Collective.REDUCE, root=1, addressing=addressing)
    steps = [step for rank in range(plan.size) for step in reduces(program, rank)]
    written = {dst for step in steps for dst in step.dsts if dst.buffer is Buffer.OUTPUT}
    assert written == {Operand(1, Buffer.OUTPUT)}
    assert all(src.buffer is not Buffer.OUTPUT for step in steps for src in step.srcs)


@settings(max_examples=8)
@given(plans(min_size=2), st.sampled_from(MOVING))
def test_one_shot_programs_need_no_flags(plan, collective):
    program = lowered(plan, collective, root=1, eager=True)
    assert (program.flags, program.eager, program.name) == (0, True, "one-shot")
    steps = [step for steps in program.ranks for c in steps.channels for step in c.steps]
    assert all(isinstance(step, Reduce) for step in steps)


@settings(max_examples=8)
@given(plans(), st.sampled_from(MOVING), st.sampled_from(Addressing), st.booleans())
def test_a_single_rank_only_copies(plan, collective, addressing, eager):
    program = lowered(star_plan(1), collective, addressing=addressing, eager=eager)
    assert not program.pipelined
    assert len(reduces(program, 0)) == 1


def test_addressed_ranks_are_neighbours_in_the_tree():
    links = {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)}
    line = (1, (1, -1, 1, 2))
    plan = plan_of(
        [line], [[(0, (-1, 0, 1, 2))], [line], [(2, (1, 2, -1, 2))], [(3, (1, 2, 3, -1))]]
    )
    for collective in set(MOVING) - {Collective.ALLTOALL}:
        for addressing in Addressing:
            verify(lowered(plan, collective, root=1, addressing=addressing), links=links)


def test_every_root_cuts_its_own_block():
    trees = joint(
        [
            packing([star(3, 0), chain(3, 0)], [1, 2]),
            packing([star(3, 1), chain(3, 1)], [1, 4]),
            packing([star(3, 2)]),
        ]
    )
    program = lower_allgather(trees, 3, DIRECT)
    assert program.shares == 15
    verify(program)
    verify(lower_reducescatter(trees, 3, STAGED))


def test_more_shares_than_programs_count_are_rounded():
    many = 2 * MAX_SHARES + 2
    trees = joint([packing([star(2, root), chain(2, root)], [3, many - 3]) for root in range(2)])
    program = lower_allgather(trees, 2, STAGED)
    assert program.shares == MAX_SHARES
    verify(program)


def test_a_tree_too_thin_for_the_rounded_shares_is_left_out():
    many = 2 * MAX_SHARES + 1
    trees = (PlannedTree(*star(2, 0), 0, 1), PlannedTree(*star(2, 1), 1, many))
    thin = PlannedPacking(many, trees, Fraction(1), Fraction(1), "lane")
    program = lower_allreduce(thin, 2, DIRECT)
    verify(program)
    assert len(reduces(program, 0)) == 0


def test_barrier_only_meets():
    assert all(not (steps.prologue or steps.channels) for steps in lower_barrier(3).ranks)


@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("root", [-1, 2])
def test_a_root_that_is_not_there(collective, root):
    with pytest.raises(ProgramError, match=f"root {root} is none of the plan's 2 ranks"):
        lowered(star_plan(2), collective, root=root)


def test_packings_that_do_not_fit_are_refused():
    with pytest.raises(ProgramError, match="allreduce of 3 ranks, root 0, got a packing of 2"):
        lower_allreduce(packing([star(2, 0)]), 3, DIRECT)
    with pytest.raises(ProgramError, match="root 1, got a packing of 2 ranks from root 0"):
        lower_broadcast(packing([star(2, 0)]), 2, 1, DIRECT)
    every = joint([packing([star(2, root)]) for root in range(2)])
    with pytest.raises(ProgramError, match=r"allreduce of 2 ranks, root 0, got .* from all roots"):
        lower_allreduce(every, 2, DIRECT)
    with pytest.raises(ProgramError, match=r"allgather of 2 ranks, root 0, got .* from root 0"):
        lower_allgather(packing([star(2, 0)]), 2, DIRECT)
