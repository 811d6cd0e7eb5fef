"""The best run for a size, choices by size, and the peer's best run."""

from dataclasses import replace
from functools import cache

import pytest

from blinkrun.errors import UsageError
from blinkrun.schedule.lower import lower_packing
from blinkrun.select import predict
from blinkrun.select.candidates import candidates_for
from blinkrun.select.estimate import Estimate
from blinkrun.select.predict import best_run, choices_for, ring_run
from blinkrun.select.trial import Setting, Trials
from blinkrun.simulator.cost import OURS, RINGS
from blinkrun.simulator.engine import simulate
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce
from blinkrun.types import Collective

FEW_SIZES = (1 << 10, 1 << 18, 1 << 25)


@cache
def four_gpus():
    return induce(machine("dgx-1v", "all"), (1, 4, 5, 7))


@cache
def offered(collective):
    return candidates_for(four_gpus(), collective)


@cache
def best(collective, size):
    return best_run(four_gpus(), collective, size_bytes=size, candidates=offered(collective))


@pytest.mark.parametrize("collective", [Collective.ALLREDUCE, Collective.BROADCAST])
@pytest.mark.parametrize("size", FEW_SIZES)
def test_no_candidate_is_faster_at_plain_chunks(collective, size):
    choice, run = best(collective, size)
    for one in offered(collective):
        for chunk in (16 << 10, 64 << 10, 256 << 10):
            program = lower_packing(one.packing, collective)
            other = simulate(program, four_gpus(), size_bytes=size, chunk_bytes=chunk)
            # the formula that sorts candidates out may err by a little
            assert run.time_ns <= other.time_ns * 1.03, one.trees
    again = simulate(
        lower_packing(choice.packing, collective, channels_per_tree=choice.channels_per_tree),
        four_gpus(),
        size_bytes=size,
        chunk_bytes=choice.chunk_bytes,
    )
    assert again == run  # what the choice says is what the run is of


@pytest.mark.parametrize("collective", [Collective.ALLREDUCE, Collective.BROADCAST])
def test_small_data_takes_few_hops_and_large_data_all_links(collective):
    small, _ = best(collective, 1 << 10)
    assert (small.packing.depth, len(small.packing.trees)) == (1, 1)
    large, run = best(collective, 1 << 25)
    assert len(large.packing.trees) > 1
    assert run.algbw_gb_per_s * 1000 > large.packing.bound * 8 / 10


def test_behind_a_switch_small_data_takes_one_star_and_large_data_all():
    topology = induce(machine("dgx-2"), range(6))
    topology = replace(
        topology,
        resources=tuple(
            replace(part, capacity=part.capacity * 23_000) for part in topology.resources
        ),
        unit="MB/s",
    )
    found = candidates_for(topology, Collective.ALLREDUCE)
    small, _ = best_run(topology, Collective.ALLREDUCE, size_bytes=4, candidates=found)
    large, run = best_run(topology, Collective.ALLREDUCE, size_bytes=1 << 28, candidates=found)
    assert small.packing.depth == large.packing.depth == 1
    assert len(large.packing.trees) == 6
    assert run.algbw_gb_per_s * 1000 > large.packing.bound * 97 / 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "collective"),
    [(range(8), Collective.BROADCAST), ((0, 1, 4, 5, 7), Collective.ALLREDUCE)],
)
def test_half_a_gigabyte_nearly_reaches_the_bound(gpus, collective):
    topology = induce(machine("dgx-1v", "all"), gpus)
    choice, run = best_run(topology, collective, size_bytes=500 * 10**6)
    assert run.algbw_gb_per_s * 1000 >= choice.packing.bound * 95 / 100


def test_choices_follow_the_sizes_and_neighbours_are_one():
    found = choices_for(four_gpus(), Collective.BROADCAST, sizes=(256, 1 << 10, 1 << 22))
    assert found.of(1).packing.depth == 1
    assert len(found.by_size) == 2  # the two small sizes are one
    assert found.by_size[0].upto_bytes == 1 << 16  # the middle by ratio
    assert found.of(1 << 30) == found.by_size[-1] != found.by_size[0]


def test_what_is_kept_is_what_was_made(tmp_path, monkeypatch):
    sizes = (256, 1 << 20)
    made = choices_for(four_gpus(), Collective.ALLREDUCE, sizes=sizes, folder=tmp_path)
    monkeypatch.setattr(predict, "candidates_for", None)  # nothing is made again
    kept = choices_for(four_gpus(), Collective.ALLREDUCE, sizes=sizes, folder=tmp_path)
    assert kept == made
    with pytest.raises(TypeError):  # another cost is another choice
        choices_for(four_gpus(), Collective.ALLREDUCE, sizes=sizes, folder=tmp_path, cost=RINGS)


@pytest.mark.parametrize("sizes", [(), (4, 4), (8, 4)])
def test_sizes_out_of_order_are_refused(sizes):
    with pytest.raises(UsageError, match="ascending"):
        choices_for(four_gpus(), Collective.ALLREDUCE, sizes=sizes)


def test_no_candidates_and_negative_sizes_are_refused():
    with pytest.raises(UsageError, match="no trees"):
        best_run(four_gpus(), Collective.ALLREDUCE, size_bytes=4, candidates=())
    with pytest.raises(UsageError, match="-4 bytes"):
        best_run(four_gpus(), Collective.ALLREDUCE, size_bytes=-4)


@pytest.mark.parametrize("size", [0, 4, 1 << 12])
def test_any_size_has_a_run(size):
    _, run = best(Collective.ALLREDUCE, size)
    assert (run.size_bytes, run.num_ranks) == (size, 4)
    assert run.time_ns >= OURS.launch_ns


def test_long_runs_are_foretold_from_short_ones():
    size, chunk = 400 * 10**6, 64 << 10
    one = next(one for one in offered(Collective.BROADCAST) if one.packing.depth > 1)
    trials = Trials(four_gpus(), Collective.BROADCAST, 0, OURS)
    setting = Setting(one, 2)
    foretold = trials.time_ns(setting, size, chunk)
    assert trials.num_moves(setting, size, chunk) > 16_000  # it was not just run
    whole = trials.run(setting, size, chunk).time_ns
    assert abs(foretold - whole) <= whole * 3 / 100


def test_the_formula_bounds_and_nearly_tells_the_time():
    for one in offered(Collective.ALLREDUCE):
        estimate = Estimate(four_gpus(), one.packing, OURS)
        trials = Trials(four_gpus(), Collective.ALLREDUCE, 0, OURS)
        for size in (1 << 10, 1 << 22):
            chunk, about_ns = estimate.start(size, 1)
            chunk = chunk if trials.program(Setting(one, 1)).pipelined else 0
            time = trials.run(Setting(one, 1), size, chunk).time_ns
            assert estimate.least_ns(size) <= time
            assert 0.5 < about_ns / time < 2


def test_the_peer_takes_its_fastest_program():
    name, run = ring_run(four_gpus(), Collective.ALLREDUCE, size_bytes=1 << 22)
    assert (name, run.collective) == ("ring", Collective.ALLREDUCE)
    assert ring_run(four_gpus(), Collective.ALLTOALL, size_bytes=1 << 22) is None
    switch = induce(machine("dgx-2", "all"), range(8))
    names = {
        ring_run(switch, Collective.ALLREDUCE, size_bytes=size)[0] for size in (1 << 10, 1 << 26)
    }
    assert names == {"double binary trees", "ring"}
