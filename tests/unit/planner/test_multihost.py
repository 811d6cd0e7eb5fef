"""Trees over several hosts: right, as fast as network and hosts allow, the same on equal hosts."""

from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blinkrun.errors import PlanError, UnreachableRankError
from blinkrun.executors import reference
from blinkrun.planner.multihost import local_trees, plan_equal_hosts, plan_hosts
from blinkrun.planner.multihost_bound import outside_bounds
from blinkrun.planner.packing import Flow
from blinkrun.planner.solve import pack
from blinkrun.schedule.lower_hosts import lower_hosts
from blinkrun.schedule.routes import Routes
from blinkrun.schedule.verify import verify
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import LinkKind, induce, select_links
from blinkrun.topology.hosts import host_of, join_hosts, program_hosts
from blinkrun.types import Collective

DGX1V, DGX1P, DGX2 = (machine(name, "all") for name in ("dgx-1v", "dgx-1p", "dgx-2"))
COLLECTIVE = {
    Flow.BOTH: Collective.ALLREDUCE,
    Flow.DOWN: Collective.BROADCAST,
    Flow.UP: Collective.REDUCE,
}
HOSTS = {
    "3+5": [(DGX1V, [0, 1, 2]), (DGX1V, [3, 4, 5, 6, 7])],
    "3+5-fast": [(DGX1V, [5, 6, 7]), (DGX1V, [0, 1, 2, 3, 4])],
    "1+7": [(DGX1V, [0]), (DGX1V, range(1, 8))],
    "2+2+4": [(DGX1V, [0, 1]), (DGX1V, [2, 3]), (DGX1V, [4, 5, 6, 7])],
    "1+1": [(DGX1V, [0]), (DGX1P, [3])],
    "1+1+1+1": [(DGX1V, [0])] * 4,
    "v+p": [(DGX1V, [1, 4, 5]), (DGX1P, range(4))],
    "v+dgx-2": [(DGX1V, [0, 1, 4]), (DGX2, range(5))],
    "3+3+3": [(DGX1V, [0, 1, 2])] * 3,
}


@cache
def hosts_of(name):
    return [induce(whole, gpus) for whole, gpus in HOSTS[name]]


@cache
def planned(name, gbps, flow, root=None):
    hosts = hosts_of(name)
    joined = join_hosts(hosts, network_gbps=gbps)
    return joined, plan_hosts(hosts, joined, flow, root)


def program_of(name, gbps, flow, root=None):
    joined, packing = planned(name, gbps, flow, root)
    return joined, over_hosts(joined, packing, flow, root)


def over_hosts(joined, packing, flow, root):
    return lower_hosts(packing, COLLECTIVE[flow], program_hosts(joined), root=root or 0)


@pytest.mark.parametrize("flow", COLLECTIVE)
@pytest.mark.parametrize("name", HOSTS)
def test_programs_verify_over_the_links_and_give_the_right_result(name, flow):
    root = None if flow is Flow.BOTH else 1
    for gbps in (40, 400):
        joined, program = program_of(name, gbps, flow, root)
        verify(program, links=Routes(joined).pairs())
        inputs = list(np.random.default_rng(gbps).integers(-99, 99, (joined.size, 211)))
        got = reference.run(program, inputs, reference.Call(chunk_elements=16, seed=1))
        want = inputs[1] if flow is Flow.DOWN else sum(inputs)
        for rank in [root] if flow is Flow.UP else range(joined.size):
            assert np.array_equal(got[rank], want)


@pytest.mark.parametrize("name", HOSTS)
def test_a_slow_network_decides_and_is_used_in_full(name):
    """Allreduce: 2 (H - 1) / H of the data leave a host; broadcast and reduce: all of it, once."""
    num_hosts = len(HOSTS[name])
    for flow, root, times in [
        (Flow.BOTH, None, Fraction(2 * (num_hosts - 1), num_hosts)),
        (Flow.DOWN, 1, Fraction(1)),
        (Flow.UP, 0, Fraction(1)),
    ]:
        _, packing = planned(name, 40, flow, root)
        assert packing.bound == 5000 / times
        assert packing.rate >= packing.bound * Fraction(999, 1000)  # whole shares


@pytest.mark.parametrize(
    ("flow", "root", "times"),
    [(Flow.BOTH, None, Fraction(3, 2)), (Flow.DOWN, 5, Fraction(1)), (Flow.UP, 0, Fraction(1))],
)
def test_so_it_is_with_more_ranks_than_are_packed_as_one(flow, root, times):
    """What one host passed on for three others would be held to half of that."""
    hosts = [induce(DGX1P, range(4))] * 4
    joined = join_hosts(hosts, network_gbps=40)
    packing = plan_hosts(hosts, joined, flow, root)
    assert packing.bound == 5000 / times
    assert packing.rate >= packing.bound * Fraction(999, 1000)


@pytest.mark.parametrize("name", ["3+5", "3+5-fast", "2+2+4", "1+7"])
@pytest.mark.parametrize("gbps", [40, 100, 200, 400])
def test_small_hosts_reach_the_joint_optimum(name, gbps):
    joined, packing = planned(name, gbps, Flow.BOTH)
    optimum, _ = pack(joined, Flow.BOTH, loss=Fraction(0))
    print(f"{name}, {gbps} Gbit/s: {float(packing.rate):.0f} of {float(optimum.rate):.0f} MB/s")
    assert optimum.rate * Fraction(94, 100) <= packing.rate <= optimum.rate
    assert packing.bound == optimum.rate


@pytest.mark.parametrize("gpus", [[[0, 1, 2], [4, 5, 6]], [[0, 1, 2, 3], [4, 5, 6, 7]]])
def test_three_phases_alone_are_nine_tenths_of_the_joint_optimum(gpus):
    """As long as the network is not faster than the hosts' own links."""
    hosts = [induce(DGX1V, group) for group in gpus]
    joined = join_hosts(hosts, network_gbps=400)
    wanted = Fraction(50_000)
    own = min(local_trees(host, Flow.BOTH, wanted=wanted).rate for host in hosts)
    optimum, _ = pack(joined, Flow.BOTH, loss=Fraction(0))
    three_phases = min(own, wanted)
    print(f"{gpus}: {float(three_phases):.0f} of {float(optimum.rate):.0f} MB/s")
    assert three_phases >= Fraction(9, 10) * optimum.rate


@pytest.mark.parametrize(
    ("flow", "root", "own_roots"),
    [
        (Flow.BOTH, None, (None, None, None)),
        (Flow.DOWN, 6, (None, 1, None)),
        (Flow.UP, 0, (0, None, None)),
    ],
)
def test_hosts_slower_than_the_network_decide_and_the_bound_is_theirs(flow, root, own_roots):
    """More ranks than the joint optimum is taken for: each host is bounded by itself."""
    hosts = [induce(DGX1P, range(5)), induce(DGX1P, range(5)), induce(DGX1V, range(3))]
    joined = join_hosts(hosts, network_gbps=1600)
    packing = plan_hosts(hosts, joined, flow, root)
    wanted = Fraction(150_000) if flow is Flow.BOTH else Fraction(200_000)
    slowest = min(
        local_trees(host, flow, root=own, wanted=wanted).rate
        for host, own in zip(hosts, own_roots, strict=True)
    )
    assert slowest * Fraction(999, 1000) <= packing.rate <= slowest < wanted
    assert packing.bound < wanted  # what the network alone would allow


@pytest.mark.parametrize("name", ["2+2+4", "v+p"])
def test_an_allreduce_crosses_the_network_once_up_and_once_down_for_each_other_host(name):
    joined, packing = planned(name, 40, Flow.BOTH)
    host = host_of(joined)
    for tree in packing.trees:
        across = [
            rank
            for rank, parent in enumerate(tree.parents)
            if parent >= 0 and host[rank] != host[parent]
        ]
        assert sorted(host[rank] for rank in (tree.root, *across)) == list(range(max(host) + 1))
        for rank in across:
            assert tree.parents[rank] == tree.root
            assert tree.up[rank] == tree.down[rank] == "network"


def test_a_broadcast_leaves_the_roots_host_once():
    joined, packing = planned("3+3+3", 40, Flow.DOWN, 1)
    host = host_of(joined)
    for tree in packing.trees:
        leaving = [
            rank for rank, parent in enumerate(tree.parents) if host[rank] and not host[parent]
        ]
        assert len(leaving) == 1
        assert tree.parents[leaving[0]] == 1


def test_equal_hosts_are_images_of_each_other():
    """Host h's part of the tree on top of host g is host 0's of that on top of host g - h."""
    joined, packing = planned("3+3+3", 100, Flow.BOTH)
    size, num_hosts = 3, 3
    for at in range(0, len(packing.trees), num_hosts):
        group = packing.trees[at : at + num_hosts]
        for turn, tree in enumerate(group):
            assert tree.stop - tree.start == group[0].stop - group[0].start
            shift = turn * size
            moved = [
                (tree.parents[(rank + shift) % joined.size] - shift) % joined.size
                for rank in range(joined.size)
            ]
            root = group[0].root
            assert tree.root == root + shift
            assert [p for rank, p in enumerate(moved) if rank != root] == [
                p for rank, p in enumerate(group[0].parents) if rank != root
            ]


@pytest.mark.parametrize("num_hosts", [2, 3, 4])
def test_many_equal_hosts_are_planned_by_one(num_hosts):
    host = induce(DGX1V, range(4))
    local, rate = plan_equal_hosts(host, num_hosts=num_hosts, network_mb_per_s=12_500)
    hosts = [host] * num_hosts
    joined = join_hosts(hosts, network_gbps=100)
    packing = plan_hosts(hosts, joined, Flow.BOTH)
    assert packing.rate == rate
    assert len(packing.trees) == num_hosts * len(local.trees)
    for number, each in enumerate(local.trees):
        tree = packing.trees[number * num_hosts]
        assert tree.root == each.tree.root
        assert tree.parents[: host.size] == each.tree.parents(host.size)
        part = Fraction(tree.stop - tree.start, packing.shares)
        assert part == each.part / num_hosts


def test_large_hosts_are_proven_by_the_network_alone():
    """To pack them with what is outside would take its time."""
    hosts = [induce(DGX2, range(12)), induce(DGX1V, [0])]
    joined = join_hosts(hosts, network_gbps=40)
    assert list(outside_bounds(hosts, joined, Flow.BOTH, None, [0])) == []


def test_a_single_host_is_planned_as_ever():
    joined = join_hosts([DGX1V], network_gbps=40)
    packing = plan_hosts([DGX1V], joined, Flow.BOTH)
    assert packing.rate == pack(DGX1V, Flow.BOTH)[0].rate


@settings(max_examples=20)
@given(
    groups=st.lists(
        st.sets(st.integers(0, 7), min_size=1, max_size=3).map(sorted), min_size=2, max_size=3
    ),
    gbps=st.sampled_from([10, 100, 800]),
    flow=st.sampled_from(list(COLLECTIVE)),
    data=st.data(),
)
def test_any_hosts_are_planned(groups, gbps, flow, data):
    """`in_shares` has checked trees, loads and certificate; the program is verified here."""
    hosts = [induce(DGX1P, group) for group in groups]
    joined = join_hosts(hosts, network_gbps=gbps)
    root = None if flow is Flow.BOTH else data.draw(st.integers(0, joined.size - 1))
    packing = plan_hosts(hosts, joined, flow, root)
    assert 0 < packing.rate <= packing.bound
    program = over_hosts(joined, packing, flow, root)
    verify(program, links=Routes(joined).pairs())


def test_what_cannot_be_planned_is_said():
    hosts = hosts_of("3+5")
    joined = join_hosts(hosts, network_gbps=40)
    with pytest.raises(PlanError, match="allgather from root 1 of 8 ranks"):
        plan_hosts(hosts, joined, Flow.ALL_DOWN, 1)
    with pytest.raises(PlanError, match="broadcast from root None of 8 ranks"):
        plan_hosts(hosts, joined, Flow.DOWN)
    with pytest.raises(PlanError, match="reduce from root 8 of 8 ranks"):
        plan_hosts(hosts, joined, Flow.UP, 8)
    with pytest.raises(PlanError, match=r"hosts of \[3, 5\] ranks, not of \[5, 3\]"):
        plan_hosts(hosts[::-1], joined, Flow.BOTH)
    other = [induce(DGX1V, [0, 1, 5]), hosts[1]]
    with pytest.raises(PlanError, match=r"host 0 \(dgx-1v\) has links that the joined topology"):
        plan_hosts(hosts, join_hosts(other, network_gbps=40), Flow.BOTH)
    alone = [induce(DGX1V, [0])]
    with pytest.raises(PlanError, match="a single rank needs no trees"):
        plan_hosts(alone, join_hosts(alone, network_gbps=40), Flow.BOTH)
    with pytest.raises(PlanError, match="1 hosts at 5000 MB/s"):
        plan_equal_hosts(DGX1V, num_hosts=1, network_mb_per_s=5000)
    apart = [select_links(induce(DGX1V, [0, 5]), [LinkKind.NVLINK]), hosts[1]]
    with pytest.raises(UnreachableRankError):
        plan_hosts(apart, join_hosts(apart, network_gbps=40), Flow.BOTH)
