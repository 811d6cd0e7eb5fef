"""Programs on a device: which there are, in how many pieces, by how many thread blocks."""

import itertools
from functools import partial

import pytest
from support.programs import chain_plan, star_plan

from blinkrun.errors import ProgramError
from blinkrun.executors import device_layout as layout
from blinkrun.executors.device_programs import DevicePrograms, lowered_on_host, pieces_of
from blinkrun.schedule.lower import lower
from blinkrun.types import Collective

DATA = [each for each in Collective if each is not Collective.BARRIER]


def programs(plan, rank, *, blocks=8, cut=(), has_areas=True):
    """Return the rank's programs, which are put at 1, 2, 3, … and how many were."""
    size, addresses = plan.size, itertools.count(1)
    reach = tuple(
        tuple((a, b) not in cut and (b, a) not in cut for b in range(size)) for a in range(size)
    )
    return DevicePrograms(
        rank,
        reach,
        partial(lowered_on_host, plan),
        blocks=blocks,
        has_areas=has_areas,
        put=lambda data: next(addresses),
    )


@pytest.mark.parametrize("collective", DATA)
@pytest.mark.parametrize("plan", [star_plan(1), star_plan(4), chain_plan(3)])
def test_all_ways_are_there_and_no_block_has_too_many_lanes(plan, collective):
    for rank, blocks in itertools.product(range(plan.size), (1, 3, 32)):
        (loaded,) = programs(plan, rank, blocks=blocks).load(collective, 0)
        direct, staged, output_only, eager = loaded.addresses
        assert direct
        assert staged
        assert eager
        assert bool(output_only) == (collective is Collective.ALLREDUCE)
        for size in (0, 1, 1000, loaded.eager_bytes, loaded.eager_bytes + 1, 1 << 20, 1 << 40):
            used = loaded.blocks(size, blocks)
            assert 1 <= used <= blocks
            if size > loaded.eager_bytes:
                assert -(-loaded.lanes // used) <= layout.LANES


def test_pieces_are_the_same_on_all_ranks_and_fill_the_blocks():
    program = lower(star_plan(4), Collective.ALLREDUCE)
    assert pieces_of(program, 32) == 32 // max(len(rank.channels) for rank in program.ranks)
    assert pieces_of(program, 1) == 1
    assert pieces_of(program, 10**6) * program.flags <= layout.FLAGS
    assert pieces_of(lower(star_plan(4), Collective.ALLREDUCE, eager=True), 32) == 1


def test_small_calls_get_few_blocks_and_large_ones_all():
    (loaded,) = programs(star_plan(4), 0, blocks=32).load(Collective.ALLREDUCE, 0)
    assert loaded.blocks(4096, 32) == loaded.eager_lanes == 1
    assert loaded.blocks(1 << 30, 32) == loaded.lanes > 16
    assert 1 < loaded.blocks(200_000, 32) < 16


def test_where_devices_do_not_reach_each_other_buffers_are_not_addressed():
    (loaded,) = programs(star_plan(3), 0, cut=[(0, 2)]).load(Collective.ALLREDUCE, 0)
    direct, staged, output_only, eager = loaded.addresses
    assert (direct, output_only) == (0, 0)
    assert staged
    assert eager
    with pytest.raises(ProgramError, match="slots in host memory, and there is none"):
        programs(star_plan(3), 0, cut=[(0, 2)], has_areas=False).load(Collective.ALLREDUCE, 0)


def test_programs_are_loaded_once_and_by_root_only_where_there_is_one():
    of_rank = programs(star_plan(3), 1)
    assert of_rank.get(Collective.ALLREDUCE, 2) is None
    first = of_rank.load(Collective.ALLREDUCE, 0)
    assert of_rank.load(Collective.ALLREDUCE, 2) is first
    assert of_rank.get(Collective.ALLREDUCE, 2) is first
    assert of_rank.load(Collective.BROADCAST, 0) != of_rank.load(Collective.BROADCAST, 2)


def test_no_root_is_taken_for_another_collective():
    of_rank = programs(star_plan(2), 0)
    of_rank.load(Collective.BROADCAST, 0)
    assert of_rank.get(Collective.ALLREDUCE, 256) is None


def test_a_barrier_needs_no_program():
    (loaded,) = programs(star_plan(3), 1).load(Collective.BARRIER, 0)
    assert loaded.addresses == (0, 0, 0, 0)
    assert loaded.blocks(0, 32) == 1


def test_more_channels_than_blocks_can_run_are_refused_on_all_ranks():
    plan = star_plan(20)
    for rank in (0, 19):
        with pytest.raises(ProgramError, match="more than 1 thread blocks can run"):
            programs(plan, rank, blocks=1).load(Collective.ALLREDUCE, 0)
