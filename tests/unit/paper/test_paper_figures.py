"""Figures 13, 18, 19b, 26 and 27: rows, and what is said of them; the goals of all figures."""

from __future__ import annotations

from fractions import Fraction

import pytest

from blinkrun.paper import data, hosts, hybrid, switch, theory
from blinkrun.paper.cases import Case, Ours, Outcome, Rings
from blinkrun.planner.packing import Flow
from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.planner.rings import RingKind
from blinkrun.schedule.choice import Choice
from blinkrun.simulator.run import Run
from blinkrun.types import Collective

TREE = PlannedTree(0, (-1, 0), 0, 1)
PACKING = PlannedPacking(1, (TREE,), Fraction(1), Fraction(50_000), "MB/s")


def run(size_bytes, time_ns, ranks=16):
    return Run(Collective.ALLREDUCE, "any", ranks, size_bytes, 0, time_ns, ())


def ours(size_bytes, time_ns):
    choice = Choice(None, "one-hop", PACKING)
    return Ours(0, choice, run(size_bytes, time_ns), Fraction(100))


@pytest.fixture
def switched(monkeypatch):
    """Both libraries as the paper's lines say, but for the size of 1 MB, where rings are slow."""
    paper = {data.size_of(row["size"]): row for row in data.rows(switch.FILE)}

    def simulated(function, cases):
        assert function is switch._run
        found = []
        for case in cases:
            row = paper[case.size_bytes]
            ring_us = float(row["nccl_us"]) * (3 if row["size"] == "1MB" else 1)
            mine = ours(case.size_bytes, int(1000 * float(row["blink_us"])))
            theirs = run(case.size_bytes, int(1000 * ring_us))
            found.append((mine, Rings("ring", RingKind.NVLINK, 6, theirs)))
        return found

    monkeypatch.setattr(switch, "mapped", simulated)
    switch._rows.cache_clear()
    yield
    switch._rows.cache_clear()


@pytest.mark.usefixtures("switched")
def test_the_lines_of_a_dgx2_are_compared_size_by_size():
    figure = switch.fig27()
    assert [row["size"] for row in figure.rows][::10] == ["1KB", "1MB", "1GB"]
    by_size = {row["size"]: row for row in figure.rows}
    assert by_size["2MB"]["ratio"] == pytest.approx(159 / 47.7, rel=1e-3)
    assert by_size["1MB"]["ring_us"] == pytest.approx(283.5)
    assert figure.summary["max_ratio"] == pytest.approx(283.5 / 36.8, rel=1e-3)
    (cause,) = figure.causes  # of latency; only that one size is far off
    assert cause.startswith("ring, 1MB 284 for 94.5: a size where bytes matter")
    assert [goal.is_met for goal in figure.goals] == [True, True]


@pytest.mark.usefixtures("switched")
def test_throughput_is_compared_as_busbw():
    """Of 1 GB in 13.3 ms, 16 GPUs: 80.7 GB/s of data, 151 GB/s on the links."""
    figure = switch.fig18()
    last = figure.rows[-1]
    assert last["blink_gb_per_s"] == pytest.approx(80.7, rel=1e-2)
    assert last["blink_busbw_gb_per_s"] == pytest.approx(80.7 * 15 / 8, rel=1e-2)
    assert any(cause.startswith("blink, ") for cause in figure.causes)


@pytest.mark.parametrize(
    ("count", "lanes"), [(3, 3), (4, 4), (5, 3), (6, 4), (7, 4), (8, 6)], ids=str
)
def test_the_hybrid_takes_an_allocation_of_as_many_lanes_as_the_papers_bar(count, lanes):
    bar = float(data.rows(hybrid.FILE)[count - 3]["nvlink_only"])
    case = hybrid._case(count, bar)
    assert len(case.gpus) == count
    row = next(row for row in data.rows("fig14_16_dgx1v") if data.gpus_of(row["gpus"]) == case.gpus)
    assert int(row["min_cut_lanes"]) == lanes
    assert abs(bar / float(row["broadcast_blink_gb_s"]) - 1) < 0.03


def test_a_gain_is_what_pcie_adds():
    case = Case("dgx-1v", (5, 6, 7), Collective.BROADCAST, data.GOAL_BYTES)
    alone, both = ours(data.GOAL_BYTES, 7_500_000), ours(data.GOAL_BYTES, 6_500_000)
    rings = Rings("ring", RingKind.NVLINK, 1, run(data.GOAL_BYTES, 12_000_000))
    row = hybrid._row(Outcome(case, both, alone, rings), 66.6, 70.5)
    assert row["gain_gb_per_s"] == pytest.approx(500 / 6.5 - 500 / 7.5, rel=1e-3)
    assert row["paper_gain_gb_per_s"] == pytest.approx(3.9)
    assert 0 < row["switched_gain_gb_per_s"] < row["gain_gb_per_s"]  # switching takes 4 ms


@pytest.fixture
def networks(monkeypatch):
    """Blink as fast as the paper's; a ring that gets 3 GB/s whatever the network."""
    paper = data.rows(hosts.FILE)

    def simulated(function, rates):
        assert function is hosts._run
        assert rates == [40, 100, 400]
        ns = [int(data.GOAL_BYTES / float(row["blink"])) for row in paper]
        ring = run(data.GOAL_BYTES, data.GOAL_BYTES // 3, ranks=8)
        return [hosts._Found(PACKING, run(data.GOAL_BYTES, each, ranks=8), ring) for each in ns]

    monkeypatch.setattr(hosts, "mapped", simulated)


@pytest.mark.usefixtures("networks")
def test_networks_are_rows_and_what_differs_is_told():
    figure = hosts.fig19b()
    assert [row["network_gbps"] for row in figure.rows] == [40, 100, 400]
    assert figure.rows[2]["ratio"] == pytest.approx(34.7 / 3, rel=1e-3)
    assert figure.rows[0]["ring_busbw_gb_per_s"] == pytest.approx(5.25, rel=1e-3)
    assert figure.goals[0].is_met
    (cause,) = figure.causes
    assert cause.startswith("ring, 40 Gbit/s 3.0 for 4.7; 100 Gbit/s")


def test_the_two_hosts_are_joined_by_their_nics_alone():
    joined = hosts.two_hosts(100)
    assert [sum(device // 1000 == host for device in joined.devices) for host in (0, 1)] == [3, 5]
    between = {
        name for link in joined.links if (link.src < 3) != (link.dst < 3) for name in link.resources
    }
    assert len(between) == 4  # each host's NIC, out and in


def test_the_box_plots_compare_trees_and_rings_on_the_same_links(monkeypatch):
    """On a few allocations; none is slower than its rings."""
    sets = data.rows
    monkeypatch.setattr(
        theory.data, "rows", lambda name: sets(name)[: 3 if name in theory.SETS.values() else None]
    )
    figure = theory.fig13()
    assert [row["box"] for row in figure.rows] == list(theory._BOXES)
    assert figure.summary["slower_than_rings"] == 0
    assert {row["allocations"] for row in figure.rows} == {3}
    nvlink = theory._ratios(("dgx-1v", Flow.DOWN, (3, 6, 7)))
    assert nvlink[0] == pytest.approx(23 / 10.2)
