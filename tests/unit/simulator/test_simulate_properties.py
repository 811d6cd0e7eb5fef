"""What holds for every program on every machine."""

import time
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fluid import fluid_time
from support.topologies import meshes, pcie_trees, switches

from blinkrun.planner.make import in_shares
from blinkrun.planner.packing import Flow
from blinkrun.planner.solve import pack
from blinkrun.schedule.ir import Addressing
from blinkrun.schedule.lower import lower_alltoall, lower_packing
from blinkrun.simulator.cost import FREE, OURS, Cost
from blinkrun.simulator.engine import simulate
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import Resource
from blinkrun.types import Collective

FLOWS = {
    Collective.ALLREDUCE: (Flow.BOTH, None),
    Collective.BROADCAST: (Flow.DOWN, 0),
    Collective.REDUCE: (Flow.UP, 0),
    Collective.ALLGATHER: (Flow.ALL_DOWN, None),
    Collective.REDUCESCATTER: (Flow.ALL_UP, None),
}
COSTS = (
    FREE,
    Cost("steps", launch_ns=50, step_ns=7, latencies_ns=FREE.latencies_ns),
    replace(OURS, memory_mb_per_s=3000, efficiency=Fraction(7, 8)),
)


def in_mb_per_s(topology, scale=100):
    resources = tuple(Resource(r.name, r.capacity * scale) for r in topology.resources)
    return replace(topology, resources=resources, unit="MB/s")


@st.composite
def cases(draw):
    """A machine, a program for it, a size and a chunk."""
    topology = in_mb_per_s(draw(st.one_of(meshes(2, 4), switches(2, 4), pcie_trees(2, 4))))
    collective = draw(st.sampled_from(sorted(FLOWS)))
    flow, root = FLOWS[collective]
    packing = in_shares(topology, *pack(topology, flow, root))
    program = lower_packing(
        packing,
        collective,
        addressing=draw(st.sampled_from(Addressing)),
        channels_per_tree=draw(st.integers(1, 2)),
    )
    size_bytes = 4 * draw(st.integers(0, 30) | st.integers(31, 2000))
    return topology, packing, program, size_bytes, draw(st.sampled_from([0, 64, 400, 1024]))


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(COSTS))
def test_times_are_those_of_a_slow_exact_simulator(case, cost):
    topology, _, program, size_bytes, chunk_bytes = case
    run = simulate(
        program, topology, size_bytes=size_bytes, chunk_bytes=chunk_bytes, cost=cost, trace=True
    )
    wanted = fluid_time(program, topology, size_bytes, chunk_bytes, cost)
    # rates are rounded down to one part in 10^11, which may cost a step one nanosecond
    assert abs(run.time_ns - wanted) <= len(run.critical)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_nothing_is_faster_than_the_links_and_more_takes_longer(case):
    topology, packing, program, size_bytes, chunk_bytes = case
    once, twice = (
        simulate(program, topology, size_bytes=size, chunk_bytes=chunk_bytes, cost=FREE).time_ns
        for size in (size_bytes, 2 * size_bytes)
    )
    blocks = max(program.input_blocks, program.output_blocks)
    moved = size_bytes // blocks // 4 * 4 * blocks
    assert once * packing.bound >= moved * 1000
    assert twice >= once * 0.8  # few elements make uneven parts: once may take a bit longer


@settings(max_examples=30, deadline=None)
@given(cases(), st.sampled_from(COSTS))
def test_the_critical_path_has_no_gap_and_the_same_run_comes_again(case, cost):
    topology, _, program, size_bytes, chunk_bytes = case
    how = {"size_bytes": size_bytes, "chunk_bytes": chunk_bytes, "cost": cost}
    run = simulate(program, topology, trace=True, **how)
    at = 0
    for part in run.critical:
        assert part.start_ns == at < part.end_ns
        at = part.end_ns
    assert at == run.time_ns
    assert run == simulate(program, topology, trace=True, **how)
    untraced = simulate(program, topology, **how)
    assert (untraced.time_ns, untraced.usage) == (run.time_ns, run.usage)
    assert untraced.transfers == untraced.critical == untraced.steps == ()


@settings(max_examples=30, deadline=None)
@given(cases())
def test_usage_is_the_sum_of_the_transfers(case):
    topology, _, program, size_bytes, chunk_bytes = case
    run = simulate(program, topology, size_bytes=size_bytes, chunk_bytes=chunk_bytes, trace=True)
    for usage in run.usage:
        crossing = [t for t in run.transfers if usage.name in topology.links[t.link].resources]
        assert usage.size_bytes == sum(t.size_bytes for t in crossing)
        assert usage.busy_ns == covered(crossing)
        assert 1000 * usage.size_bytes <= usage.capacity_mb_per_s * usage.busy_ns


def covered(transfers):
    """How long at least one of them was on its way."""
    total = until = 0
    for transfer in sorted(transfers, key=lambda each: each.start_ns):
        total += max(0, transfer.end_ns - max(until, transfer.start_ns))
        until = max(until, transfer.end_ns)
    return total


@cache
def packed(name, links, collective):
    topology = machine(name, links)
    flow, root = FLOWS[collective]
    packing = in_shares(topology, *pack(topology, flow, root))
    return topology, packing, lower_packing(packing, collective)


def test_large_broadcasts_reach_the_rate_of_their_trees():
    topology, packing, program = packed("dgx-1v", "all", Collective.BROADCAST)
    run = simulate(program, topology, size_bytes=500_000_000, chunk_bytes=250_000, cost=FREE)
    assert run.algbw_gb_per_s * 1000 >= packing.rate * Fraction(97, 100)


def test_switches_reach_the_rate_of_their_stars():
    topology, packing, program = packed("dgx-2", "all", Collective.ALLREDUCE)
    run = simulate(program, topology, size_bytes=10**9, cost=OURS)
    assert run.algbw_gb_per_s * 1000 >= packing.rate * Fraction(97, 100)


def test_alltoall_over_a_switch_fills_the_ports():
    topology = machine("dgx-2", "all")
    program = lower_alltoall(16, Addressing.DIRECT)
    run = simulate(program, topology, size_bytes=16 * 16 * 10**6, cost=FREE)
    port = min(r.capacity for r in topology.resources if r.name.startswith("port"))
    assert run.time_ns * port >= 15 * 16 * 10**9  # each port takes 15 blocks of 16 MB
    assert run.time_ns * port <= 15 * 16 * 10**9 * Fraction(101, 100)


@pytest.mark.parametrize("collective", [Collective.ALLREDUCE, Collective.BROADCAST])
def test_eight_gpus_are_simulated_within_the_promised_time(collective):
    topology, _, program = packed("dgx-1v", "all", collective)
    began_s = time.process_time()
    simulate(program, topology, size_bytes=500_000_000, chunk_bytes=1_000_000)
    assert time.process_time() - began_s < 5
