"""What a run says of itself, and what crosses the links for the sizes that training asks for."""

from fractions import Fraction
from functools import cache
from itertools import pairwise

import pytest

from blinkrun.bench.work import Work
from blinkrun.paper.links import allocation, fabric_alone, lane_of
from blinkrun.paper.models import MODELS
from blinkrun.paper.training_compute import compute_of, gradients
from blinkrun.planner.make import in_shares
from blinkrun.planner.packing import Flow
from blinkrun.planner.solve import pack
from blinkrun.schedule.lower import lower_packing
from blinkrun.schedule.peer import ring_programs
from blinkrun.simulator.cost import FREE, OURS, RINGS
from blinkrun.simulator.engine import simulate
from blinkrun.simulator.overlap import DDP_BUCKETS, buckets
from blinkrun.simulator.run import Run, Usage
from blinkrun.types import Collective, DType, Op

GPUS = (1, 4, 5, 7)
COLLECTIVES = [each for each in Collective if each is not Collective.BARRIER]
BUCKETS = sorted(
    {
        bucket.size_bytes
        for model in MODELS
        for bucket in buckets(gradients(model, compute_of(model)), DDP_BUCKETS)
    }
)


def run_of(collective, *, size_bytes=10**6, time_ns=250_000, num_ranks=5, usage=()):
    return Run(collective, "program", num_ranks, size_bytes, 0, time_ns, usage)


@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda each: each.label)
@pytest.mark.parametrize("num_ranks", [2, 3, 8, 16])
def test_bandwidths_are_those_of_the_benchmark(collective, num_ranks):
    run = run_of(collective, num_ranks=num_ranks, size_bytes=48 * 10**4)
    work = Work(collective.label, DType.FLOAT32, Op.SUM, 0, num_ranks, run.size_bytes)
    time_us = run.time_ns / 1000
    assert float(run.algbw_gb_per_s) == pytest.approx(work.algbw(time_us))
    assert float(run.busbw_gb_per_s) == pytest.approx(work.busbw(time_us))


def test_rates_are_exact():
    run = run_of(Collective.ALLREDUCE, size_bytes=7, time_ns=3, num_ranks=3)
    assert (run.algbw_gb_per_s, run.busbw_gb_per_s) == (Fraction(7, 3), Fraction(28, 9))


def test_a_run_of_no_time_has_finite_rates():
    usage = Usage("wire", 1000, 0, 0)
    run = run_of(Collective.BROADCAST, size_bytes=0, time_ns=0, usage=(usage,))
    assert run.algbw_gb_per_s == run.busbw_gb_per_s == run.utilisation(usage) == 0


def test_utilisation_is_the_busy_part_of_the_time():
    usage = Usage("wire", 1000, 10, 50_000)
    assert run_of(Collective.REDUCE, usage=(usage,)).utilisation(usage) == Fraction(1, 5)


@cache
def wires():
    return fabric_alone(allocation("dgx-1v", GPUS))


@cache
def trees(channels):
    packing = in_shares(wires(), *pack(wires(), Flow.BOTH))
    return lower_packing(packing, Collective.ALLREDUCE, channels_per_tree=channels)


def crossed(run):
    """Bytes over all wires of NVLink; each is one resource."""
    return sum(usage.size_bytes for usage in run.usage)


@pytest.mark.parametrize("size_bytes", BUCKETS[:: max(1, len(BUCKETS) // 6)])
@pytest.mark.parametrize(("channels", "chunk_bytes"), [(1, 0), (1, 1 << 20), (3, 1_000_003)])
def test_a_bucket_goes_once_up_and_once_down_every_edge(size_bytes, channels, chunk_bytes):
    run = simulate(trees(channels), wires(), size_bytes=size_bytes, chunk_bytes=chunk_bytes)
    assert crossed(run) == 2 * (len(GPUS) - 1) * size_bytes


@pytest.mark.parametrize("size_bytes", BUCKETS[:: max(1, len(BUCKETS) // 4)])
def test_a_ring_moves_as_many_bytes_as_trees_do(size_bytes):
    gpus = (0, 1, 2)  # NVLink closes a ring
    topology = fabric_alone(allocation("dgx-1v", gpus))
    (ring,) = ring_programs(topology, Collective.ALLREDUCE, lane=lane_of("dgx-1v"))
    run = simulate(
        ring.program,
        topology,
        size_bytes=size_bytes,
        chunk_bytes=ring.chunk_bytes_of(size_bytes),
        cost=RINGS,
    )
    assert crossed(run) == 2 * (len(gpus) - 1) * size_bytes


def test_larger_buckets_take_longer_and_get_a_better_rate():
    runs = [
        simulate(trees(4), wires(), size_bytes=size_bytes, chunk_bytes=1 << 18, cost=OURS)
        for size_bytes in BUCKETS[:: max(1, len(BUCKETS) // 6)]
    ]
    times = [run.time_ns for run in runs]
    rates = [run.algbw_gb_per_s for run in runs]
    assert times == sorted(times)
    assert all(after > before * Fraction(97, 100) for before, after in pairwise(rates))


@pytest.mark.parametrize("size_bytes", [BUCKETS[0], BUCKETS[-1]])
def test_no_bucket_is_faster_than_the_packing_allows(size_bytes):
    packing = in_shares(wires(), *pack(wires(), Flow.BOTH))
    run = simulate(trees(1), wires(), size_bytes=size_bytes, chunk_bytes=1 << 18, cost=FREE)
    assert run.algbw_gb_per_s <= packing.bound / 1000  # MB/s
    assert all(usage.busy_ns <= run.time_ns for usage in run.usage)
