"""Cases of the paper: simulated whole on a small one, and what is said of rows that are far off."""

from __future__ import annotations

from fractions import Fraction

import pytest

from blinkrun.paper import cases, collectives, data
from blinkrun.paper.cases import Case, Ours, Outcome, Rings, outcome
from blinkrun.paper.causes import Compared, causes
from blinkrun.paper.collectives import FIG14, FIG15, FIG16, bars
from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.planner.rings import RingKind
from blinkrun.schedule.choice import Choice
from blinkrun.simulator.run import Run
from blinkrun.types import Collective

SIZE = 1_000_000


def ran(gb_per_s, collective):
    return Run(collective, "any", 3, SIZE, 0, int(SIZE / max(gb_per_s, 0.001)), ())


def fake(gpus, *, blink, nvlink, ring, kind=RingKind.NVLINK, collective=Collective.BROADCAST):
    """An outcome with these rates in GB/s, of a packing that nobody looks at."""
    tree = PlannedTree(0, (-1, 0, 0), 0, 1)
    choice = Choice(None, "packed", PlannedPacking(1, (tree,), Fraction(1), Fraction(1), "MB/s"))
    over = [Ours(gpus[0], choice, ran(rate, collective), Fraction(100)) for rate in (blink, nvlink)]
    case = Case("dgx-1v", tuple(gpus), collective, SIZE)
    return Outcome(case, *over, Rings("ring", kind, 1, ran(ring, collective)))


def compared(found, blink, nccl, lanes=1.0):
    return Compared(found, paper_blink=blink, paper_nccl=nccl, bound_lanes=lanes)


@pytest.mark.slow
def test_a_pair_without_a_ring_has_all_that_the_links_carry():
    """GPUs 3, 6, 7: one lane between each neighbour, PCIe beside it; rings have PCIe alone."""
    found = outcome(Case("dgx-1v", (3, 6, 7), Collective.BROADCAST, 50_000_000))
    assert found.rings.kind is RingKind.PCIE
    assert found.nvlink.bound_gb_per_s == 23
    assert found.everything.bound_gb_per_s > 23
    for ours in (found.nvlink, found.everything):
        assert 0.9 * ours.bound_gb_per_s < ours.gb_per_s <= ours.bound_gb_per_s
    assert found.everything.gb_per_s > found.nvlink.gb_per_s
    assert 8 < found.rings.gb_per_s < 10.2 * 0.88
    assert found.everything.root in (3, 6, 7)


@pytest.mark.parametrize(("wanted", "count"), [(FIG14, 46), (FIG15, 14), (FIG16, 46)])
def test_every_bar_of_the_paper_is_a_case_of_500_mb(wanted, count):
    every = wanted.cases()
    assert len(every) == count == len(set(every))
    assert {case.size_bytes for case in every} == {data.GOAL_BYTES}
    for row in data.rows(wanted.file):  # columns that are there
        assert float(row[wanted.blink]) > float(row[wanted.nccl]) / 1.1
        assert float(row[wanted.lanes]) >= 1


def test_rows_like_the_papers_need_no_cause():
    assert causes([compared(fake((5, 6, 7), blink=66, nvlink=65, ring=43), 66, 43, 3)]) == ()


@pytest.mark.parametrize(
    ("found", "bars", "said"),
    [
        (
            fake((3, 6, 7), blink=32, nvlink=23, ring=9, kind=RingKind.PCIE),
            (23, 9, 1),
            "Blink: PCIe carries a part beside NVLink",
        ),
        (
            fake((0, 1), blink=60, nvlink=52, ring=26, collective=Collective.ALLREDUCE),
            (26.3, 25.8, 2.25),
            "Blink: the paper's bar is less than 16 GB/s per lane",
        ),
        (
            fake((0, 1), blink=33, nvlink=23, ring=6, collective=Collective.ALLREDUCE),
            (17.2, 6, 1),
            "Blink: the paper's kernels achieve 16 to 20 GB/s per lane",
        ),
        (fake((0, 1), blink=20, nvlink=20, ring=9), (30, 9, 1), "Blink: below the paper's bar"),
        (
            fake((1, 5, 6), blink=45, nvlink=45, ring=9, kind=RingKind.PCIE),
            (45, 25, 2),
            "NCCL: the paper's bar is more than PCIe carries",
        ),
        (
            fake((1, 5, 6), blink=45, nvlink=45, ring=20, kind=RingKind.PCIE),
            (45, 25, 2),
            "NCCL: no NVLink ring, but a chain",
        ),
        (
            fake((1, 4), blink=45, nvlink=45, ring=6, kind=RingKind.PCIE),
            (45, 4.4, 2),
            "NCCL: the paper's PCIe ring got less here",
        ),
        (fake((1, 4), blink=45, nvlink=45, ring=60), (45, 43, 2), "NCCL: the paper's bar is below"),
        (fake((1, 4), blink=45, nvlink=45, ring=30), (45, 43, 2), "NCCL: the paper's bar is above"),
        (
            fake((4, 5), blink=90, nvlink=90, ring=60),
            (90, 88, 3),  # 0.88 of the bound of 100 that fakes have
            "NCCL: the paper's bar is what all lanes out of the root carry",
        ),
    ],
)
def test_a_row_that_is_far_off_has_one_cause(found, bars, said):
    (cause,) = causes([compared(found, *bars)])
    assert cause.startswith(said)
    assert cause.endswith("(all 1 rows)")


def test_rows_of_one_cause_are_named_together():
    rows = [
        compared(fake(gpus, blink=32, nvlink=23, ring=9, kind=RingKind.PCIE), 23, 9)
        for gpus in ((3, 6, 7), (3, 5, 7))
    ]
    like = [compared(fake((at, 7), blink=66, nvlink=65, ring=43), 66, 43, 3) for at in range(3)]
    (few,) = causes([*rows, *like])
    assert few.endswith("(2 of 5 rows: 3,6,7; 3,5,7)")
    (most,) = causes([*rows, *like[:1]])
    assert most.endswith("(2 of 3 rows: all but 0,7)")


def test_the_figure_counts_what_was_wanted(monkeypatch):
    """All bars twice the rings', at their bound; one row of rings far from the paper's."""
    rows = data.rows(FIG15.file)

    def simulated(cases):
        found = []
        for case, row in zip(cases, rows, strict=True):
            nccl = float(row[FIG15.nccl]) * (1.5 if case.gpus == (5, 6, 7) else 1.0)
            found.append(fake(case.gpus, blink=98, nvlink=2 * nccl, ring=nccl))
        return found

    monkeypatch.setattr(collectives, "outcomes", simulated)
    figure = bars(FIG15)
    assert figure.summary["rows_of_bound"] == 14
    assert figure.summary["rows_at_paper_blink"] == 14
    assert figure.summary["rows_ring_near_paper"] == 13
    assert figure.summary["nvlink_geomean_ratio"] == pytest.approx(2.0, abs=0.01)
    assert figure.summary["max_ratio"] == pytest.approx(98 / 5.0, rel=0.01)
    assert "The others: 5,6,7 (48.5 for 32.3)." in figure.says[1]
    assert all(goal.is_met for goal in figure.goals)
    keys = {"gpus", "blink_gb_per_s", "ring_gb_per_s", "paper_blink_gb_per_s"}
    assert keys | {"paper_nccl_gb_per_s", "bound_gb_per_s"} <= set(figure.as_json()["rows"][0])


@pytest.mark.parametrize(
    ("rates", "root"),
    [([99, 0, 0], 5), ([90, 97, 98], 6), ([90, 92, 91], 6)],
    ids=["the first is close", "the second is", "none is, so the best"],
)
def test_of_equally_good_roots_one_whose_trees_come_close_is_taken(monkeypatch, rates, root):
    bound = Fraction(100)
    monkeypatch.setattr(cases, "_roots", lambda *_: [(at, bound) for at in range(3)])
    choice = fake((5, 6, 7), blink=1, nvlink=1, ring=1).everything.choice
    monkeypatch.setattr(
        cases, "best_run", lambda *_, root, **__: (choice, ran(rates[root], Collective.BROADCAST))
    )
    case = Case("dgx-1v", (5, 6, 7), Collective.BROADCAST, SIZE)
    assert cases.ours(case.topology, case).root == root


def test_no_case_is_simulated_twice(monkeypatch):
    wanted = [Case("dgx-1v", (5, 6, at), Collective.BROADCAST, SIZE) for at in (0, 1, 0)]
    simulated = []

    def all_at_once(_, new):
        simulated.extend(new)
        return [fake(case.gpus, blink=3, nvlink=2, ring=1) for case in new]

    monkeypatch.setattr(cases, "mapped", all_at_once)
    monkeypatch.setattr(cases, "_known", {})
    assert [found.case.gpus for found in cases.outcomes(wanted)] == [case.gpus for case in wanted]
    assert len(cases.outcomes(wanted[:1])) == 1
    assert simulated == wanted[:2]


def test_a_row_below_its_bound_is_not_counted(monkeypatch):
    def simulated(cases):
        return [
            fake(case.gpus, blink=94 if at else 96, nvlink=23, ring=9)
            for at, case in enumerate(cases)
        ]

    monkeypatch.setattr(collectives, "outcomes", simulated)
    assert bars(FIG15).summary["rows_of_bound"] == 1
