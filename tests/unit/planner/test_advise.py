"""Advice: every allocation in one group, alike ones together, the fastest first."""

from fractions import Fraction
from itertools import combinations
from math import comb

import pytest
from support.paper import bounds, gpus
from support.topologies import mesh_of

from blinkrun.errors import UsageError
from blinkrun.planner import advise as advise_module
from blinkrun.planner.advise import MAX_LISTED, advise
from blinkrun.planner.compare import compare
from blinkrun.planner.packing import Flow
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce

DGX1V = machine("dgx-1v")
DGX1P = machine("dgx-1p")


@pytest.mark.parametrize("count", [2, 3])
def test_groups_are_all_allocations_ranked(count):
    groups = advise(DGX1V, range(8), count)
    listed = [allocation for group in groups for allocation in group.allocations]
    assert sorted(listed) == list(combinations(range(8), count))
    assert [group.count for group in groups] == [len(group.allocations) for group in groups]
    rates = [group.rate for group in groups]
    assert rates == sorted(rates, reverse=True)
    assert all(group.example == group.allocations[0] for group in groups)


def test_all_of_a_group_get_the_same():
    for group in advise(DGX1P, range(8), 3):
        for allocation in group.allocations:
            if group.rate:
                found = compare(induce(DGX1P, allocation))
                assert (found.rate, found.ring_rate) == (group.rate, group.ring_rate)


def test_connected_groups_are_those_of_the_paper():
    """Its 3 sets of three P100 and the rates of each."""
    rows = [case.values[1] for case in bounds("dgx1p")]
    known = [row for row in rows if "any" not in row["gpus"] and len(gpus(row["gpus"])) == 3]
    groups = [group for group in advise(DGX1P, range(8), 3) if group.rate]
    found = sorted(f"{float(group.rate):.2f}" for group in groups)
    assert found == sorted(row["partition_bound_lanes"] for row in known)


def test_what_no_links_join_is_last_and_says_so():
    *_, last = advise(DGX1V, [0, 1, 4, 7], 3)
    assert (last.example, last.rate, last.ring_rate, last.ratio) == ((1, 4, 7), 0, 0, None)
    assert last.why == "no links lead from GPU 1 to GPU 4"


def test_what_bounds_a_group_is_in_words():
    best = advise(DGX1V, [7, 5, 6], 3)[0]
    assert best.example == (5, 6, 7)
    assert best.why.endswith("no allreduce exceeds 5/2 lanes")
    assert best.ratio == Fraction(5, 3)


def test_behind_a_switch_all_are_alike():
    (group,) = advise(machine("dgx-2"), range(16), 8)
    assert (group.count, len(group.allocations)) == (comb(16, 8), MAX_LISTED)
    assert (group.example, group.rate) == (tuple(range(8)), Fraction(24, 7))


def test_a_root_is_in_every_allocation():
    groups = advise(DGX1P, range(8), 3, Flow.DOWN, root=2)
    listed = [allocation for group in groups for allocation in group.allocations]
    assert sorted(listed) == [three for three in combinations(range(8), 3) if 2 in three]
    for group in groups:
        if group.rate:
            part = induce(DGX1P, group.example)
            assert compare(part, Flow.DOWN, part.devices.index(2)).rate == group.rate


def test_the_root_tells_sets_apart_that_look_the_same():
    """A path of one and two lanes: broadcasts from its ends differ, sets of GPUs do not."""
    lanes = {(0, 1): 2, (2, 3): 2}
    path = mesh_of(4, lanes | {(1, 0): 1, (3, 2): 1})
    assert len(advise(path, [0, 1], 2, Flow.DOWN)) == 1
    rates = [advise(path, [0, 1], 2, Flow.DOWN, root=root)[0].rate for root in (0, 1)]
    assert rates == [2, 1]


def test_without_a_root_each_allocation_has_its_best():
    (group,) = advise(mesh_of(2, {(0, 1): 1, (1, 0): 3}), [0, 1], 2, Flow.DOWN)
    assert group.rate == 3


def test_the_width_of_a_lane_makes_more_rings():
    """Four GPUs that are all linked by four lanes: 6 rings of a lane, but one of four."""
    whole = mesh_of(4, {(a, b): 4000 for a in range(4) for b in range(4) if a != b})
    whole = induce(whole, range(4))
    whole = type(whole)("mesh", whole.devices, whole.links, whole.resources, "MB/s")
    assert advise(whole, range(4), 4)[0].ratio == Fraction(3, 2)
    assert advise(whole, range(4), 4, lane=1000)[0].ratio == 1


@pytest.mark.parametrize(
    ("free", "count", "flow", "root", "text"),
    [
        ([0, 1, 8], 2, Flow.BOTH, None, "dgx-1v has no GPU 8; it has 0 1 2 3 4 5 6 7"),
        ([0, 1, 0], 2, Flow.BOTH, None, "GPU 0 is named twice among the free ones"),
        ([0, 1, 2], 1, Flow.BOTH, None, "1 of 3 free GPUs: need 2 to 3"),
        ([0, 1, 2], 4, Flow.BOTH, None, "4 of 3 free GPUs"),
        ([0, 1, 2], 2, Flow.BOTH, 0, "allreduce has no root"),
        ([0, 1, 2], 2, Flow.DOWN, 3, "root 3 is not among the free GPUs 0 1 2"),
    ],
)
def test_what_cannot_be_chosen_is_one_line(free, count, flow, root, text):
    with pytest.raises(UsageError, match=text):
        advise(DGX1V, free, count, flow, root)


def test_too_many_ways_are_refused(monkeypatch):
    monkeypatch.setattr(advise_module, "MAX_ORBITS", 50)
    with pytest.raises(UsageError, match="4 of 8 free GPUs can be chosen in more than 50 ways"):
        advise(DGX1V, range(8), 4)


@pytest.mark.slow
@pytest.mark.parametrize("flow", [Flow.BOTH, Flow.DOWN, Flow.ALL_DOWN])
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("dgx-1v", 3),
        ("dgx-1p", 4),
        ("a100-4-mesh", 4),
        ("pcie-8", 5),
        ("ac922-6", 6),
        ("mi100-8", 5),
    ],
)
def test_no_allocation_is_slower_than_rings(name, most, flow):
    whole = machine(name, "all")
    lane = {"dgx-1v": 23_000, "dgx-1p": 19_000, "a100-4-mesh": 22_500}.get(name)
    for count in range(2, most + 1):
        for group in advise(whole, range(whole.size), count, flow, lane=lane):
            assert group.ratio is None or group.ratio >= 1, group.example
