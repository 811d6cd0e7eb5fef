"""What the time is made of, in words."""

from dataclasses import replace
from fractions import Fraction

import pytest
from support.simulated import MB, chain_program, line, machine_of, pair, pulls

from blinkrun.errors import UsageError
from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.schedule.lower import lower_barrier, lower_packing
from blinkrun.simulator.cost import FREE, Cost
from blinkrun.simulator.engine import simulate
from blinkrun.simulator.explain import critical_text
from blinkrun.simulator.seen_tree import tree_of
from blinkrun.topology.graph import LinkKind
from blinkrun.types import Collective

COST = Cost("some", launch_ns=20_000, step_ns=1000, latencies_ns=((LinkKind.NVLINK, 500),))


def told(program, topology, cost=COST, **how):
    run = simulate(program, topology, cost=cost, trace=True, **how)
    return critical_text(run, topology, program)


def test_a_chain_by_its_devices():
    """Four chunks of 250 us over three hops: 6 steps on the way; the wires rest for two of six."""
    topology = replace(line(4), devices=(5, 6, 2, 3))
    lines = told(chain_program(4), topology, size_bytes=MB, chunk_bytes=MB // 4)
    assert lines == [
        "last is the depth 3 tree over 5-6-2-3 with 100 % of the data: "
        "link 5->6 is busy 65 %, 6->2 65 %, 2->3 65 %",
        "1.529 ms are launch 20 us; step 6 us of 6 steps; latency 3 us of 6 steps; "
        "transfer 1.5 ms of 6 steps, at 100 % of what its links can",
        "most of it on link 5->6 (nvlink): 500 us in 2 transfers",
        "bound by 0->1 and 2 more: busy 65 %, carries 0.654 of 1 GB/s (65 %)",
    ]


@pytest.mark.parametrize("collective", [Collective.ALLREDUCE, Collective.REDUCE])
def test_a_tree_is_seen_from_its_root_whichever_way_data_flows(collective):
    """0-1-2 and 0-3; the last to end is the long branch, which has the slow wire as well."""
    tree = PlannedTree(0, (-1, 0, 1, 0), 0, 1)
    packing = PlannedPacking(1, (tree,), Fraction(1), Fraction(1), "MB/s")
    program = lower_packing(packing, collective)
    ends = [(0, 1), (1, 0), (1, 2), (2, 1), (0, 3), (3, 0)]
    wires = {f"{a}->{b}": 500 if {a, b} == {1, 2} else 1000 for a, b in ends}
    topology = machine_of(wires, [(a, b, (f"{a}->{b}",)) for a, b in ends])
    first, *_ = told(program, topology, size_bytes=MB, chunk_bytes=MB // 8)
    assert first.startswith("last is the depth 2 tree over 0-1-2 with 100 % of the data")
    assert tree_of(program, (0, 0), {frozenset((0, 3)): 1}).path == (0, 3)


def test_trees_of_all_roots_are_told_apart():
    """In allgather every rank's block is cut alike, and each has a tree of its own."""
    chains = [(-1, 0, 1), (1, -1, 1), (1, 2, -1)]
    trees = tuple(PlannedTree(root, parents, 0, 1) for root, parents in enumerate(chains))
    packing = PlannedPacking(1, trees, Fraction(1), Fraction(1), "MB/s", joint=True)
    for collective in (Collective.ALLGATHER, Collective.REDUCESCATTER):
        program = lower_packing(packing, collective)
        seen = [
            tree_of(program, (rank, number), {})
            for rank in range(3)
            for number in range(len(program.ranks[rank].channels))
        ]
        assert {(tree.depth, tree.path) for tree in seen} == {
            (2, (0, 1, 2)),
            (1, (1, 0)),
            (2, (2, 1, 0)),
        }
        assert len({tree.channels for tree in seen}) == 3
    first, *_ = told(program, line(3), size_bytes=MB)
    assert "with 33 % of the data" in first


def test_devices_of_several_hosts_are_named_with_their_host():
    topology = replace(line(3), devices=(3, 1000, 2004))
    lines = told(chain_program(3), topology, size_bytes=400)
    assert "0:3-1:0-2:4" in lines[0]


def test_memory_can_be_what_takes_long():
    lines = told(pulls(2, [(1, 0, "")]), pair(), replace(FREE, memory_mb_per_s=1), size_bytes=400)
    assert lines[1] == "400 us are memory 400 us"
    assert lines[2] == "no transfer is on the critical path: memory is slower than all links"


def test_nothing_moved_leaves_the_launch():
    assert told(chain_program(2), line(2), size_bytes=0) == ["20 us are launch 20 us"]
    assert told(lower_barrier(2), line(2), FREE, size_bytes=0) == ["0 ns are nothing at all"]


def test_a_run_without_transfers_cannot_be_explained():
    run = simulate(chain_program(2), line(2), size_bytes=400)
    with pytest.raises(UsageError, match="trace=True"):
        critical_text(run, line(2), chain_program(2))
