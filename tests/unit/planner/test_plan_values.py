"""Plans as values: what they refuse, their text form, what they say for people."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from support.topologies import host_of, machines, mesh_of

from blinkrun.errors import PlanError, UnreachableRankError
from blinkrun.planner import make
from blinkrun.planner.make import FEW_SHARES, in_shares, make_plan
from blinkrun.planner.packing import Flow
from blinkrun.planner.plan import Plan, PlannedPacking, PlannedTree
from blinkrun.planner.solve import pack
from blinkrun.topology.catalog import machine
from blinkrun.topology.cpu import cpu_topology

PAIR = make_plan(cpu_topology(host_of(1, 2), 2))
STAR = PlannedTree(root=0, parents=(-1, 0, 0), start=0, stop=2)
ONE = PlannedPacking(2, (STAR,), Fraction(1), Fraction(1), "lane")
ALL = PlannedPacking(
    2,
    tuple(
        PlannedTree(root, tuple(-1 if rank == root else root for rank in range(3)), 0, 2)
        for root in range(3)
    ),
    Fraction(3),
    Fraction(3),
    "lane",
    joint=True,
)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: replace(STAR, root=3), "tree rooted at 3"),
        (lambda: replace(STAR, root=1), "tree rooted at 1"),
        (lambda: replace(STAR, stop=0), r"shares \[0, 0\) are empty"),
        (lambda: replace(STAR, start=-1), r"shares \[-1, 2\) are empty"),
        (lambda: replace(STAR, parents=(-1, 2, 1)), "rank 1 does not hang on it"),
        (lambda: replace(STAR, parents=(-1, 0, -1)), "rank 2 does not hang on it"),
        (lambda: replace(STAR, parents=(-1, 0, 7)), "rank 2 does not hang on it"),
        (lambda: replace(ONE, trees=()), "trees carry 0 of 2 shares"),
        (lambda: replace(ONE, shares=3), "trees carry 2 of 3 shares"),
        (lambda: replace(ONE, trees=(replace(STAR, start=1),)), "starts at share 1, not at 0"),
        (
            lambda: replace(ONE, shares=3, trees=(STAR, PlannedTree(0, (-1, 0), 2, 3))),
            "tree at 0 starts",
        ),
        (lambda: replace(ONE, rate=Fraction(2)), "rate 2 is not between 0 and the bound 1"),
        (lambda: replace(ONE, rate=Fraction(-1)), "rate -1 is not between"),
        (lambda: replace(PAIR, broadcast=PAIR.broadcast[:1]), "broadcast has 1 roots"),
        (lambda: replace(PAIR, reduce=PAIR.reduce[::-1]), "reduce from root 0 has a tree with"),
        (lambda: replace(PAIR, allreduce=ONE), "packing of 3 ranks in a plan of 2"),
        (lambda: replace(STAR, up=("nvlink",) * 3), r"links \(.nvlink., .nvlink., .nvlink.\)"),
        (lambda: replace(STAR, down=("", "nvlink")), r"\(.., .nvlink.\); 3 ranks"),
        (lambda: replace(ALL, trees=ALL.trees[::-1]), "not in the order of their roots"),
        (lambda: replace(ALL, trees=ALL.trees[:2]), "trees at 2 carry 0 of 2 shares"),
        (lambda: replace(ALL, trees=()), "trees at 0 carry 0 of 2 shares"),
        (lambda: replace(ALL, joint=False), "tree at 1 starts at share 0, not at 2"),
        (lambda: replace(PAIR, allgather=PAIR.allreduce), "need trees of all roots"),
        (lambda: replace(PAIR, allreduce=PAIR.allgather), "but not for allgather"),
        (lambda: replace(PAIR, reducescatter=ALL), "packing of 3 ranks in a plan of 2"),
    ],
)
def test_plans_that_contradict_themselves_are_refused(make, text):
    with pytest.raises(PlanError, match=text):
        make()


@settings(max_examples=4)
@given(machines(max_size=5))
def test_json_gives_the_same_plan_back_and_equal_plans_give_equal_text(topology):
    plan = make_plan(topology)
    assert Plan.from_json(plan.to_json()) == plan
    assert make_plan(topology).to_json() == plan.to_json()
    assert plan.topology_hash == topology.content_hash


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 0}, "plan of version 0"),
        ({"size": 3}, "broadcast has 2 roots, the plan 3 ranks"),
        ({"loss": "much"}, "is no plan: ValueError"),
        ({"loss": "1/0"}, "is no plan: ZeroDivisionError"),
        ({"allreduce": {}}, "is no plan: KeyError"),
        ({"reduce": None}, "is no plan: TypeError"),
        ({"allgather": {}}, "is no plan: KeyError"),
        ({"broadcast": [{"trees": [[0]], "shares": 1}]}, "is no plan: ValueError"),
    ],
)
def test_altered_json_is_refused(change, text):
    with pytest.raises(PlanError, match=text):
        Plan.from_json(json.dumps(json.loads(PAIR.to_json()) | change))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"plan"', "null"])
def test_text_that_is_no_plan_is_refused(text):
    with pytest.raises(PlanError, match="is no plan"):
        Plan.from_json(text)


def test_a_pair_on_shared_memory_reads_as_it_should():
    assert PAIR.describe().splitlines() == [
        "cpu host, 2 cores on 1 socket, 1 NUMA node: 2 ranks",
        "  allreduce: 2 one-hop trees, roots 0 1, 12,000 MB/s, 100 % of the bound (LP certificate)",
        "  broadcast, any root: 1 one-hop tree, 12,000 MB/s, 100 % of the bound (LP certificate)",
        "  reduce, any root: 1 one-hop tree, 12,000 MB/s, 100 % of the bound (LP certificate)",
        "  allgather: 2 one-hop trees, 24,000 MB/s, 100 % of the bound (LP certificate)",
        "  reducescatter: 2 one-hop trees, 24,000 MB/s, 100 % of the bound (LP certificate)",
    ]


def test_roots_that_differ_are_listed_apart():
    chain = mesh_of(3, {(0, 1): 1, (1, 0): 1, (1, 2): 1, (2, 1): 1}, name="chain")
    text = make_plan(chain).describe()
    assert "broadcast, root 0 2: 1 2-hop tree, 1 lane" in text
    assert "broadcast, root 1: 1 one-hop tree, 1 lane" in text
    assert "allreduce: 1 one-hop tree, roots 1, 1 lane" in text
    assert "to-" in make_plan(machine("dgx-1v")).describe()


def test_a_single_rank_has_nothing_to_move():
    plan = make_plan(cpu_topology(host_of(1, 1), 1))
    assert plan.describe().endswith("1 rank, nothing to move")
    assert replace(plan, machine="").describe() == "plan: 1 rank, nothing to move"
    every = (plan.allreduce, plan.allgather, plan.reducescatter, *plan.broadcast, *plan.reduce)
    for packing in every:
        assert (packing.shares, packing.depth, packing.rate) == (1, 0, 0)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("flow", [Flow.BOTH, Flow.DOWN, Flow.UP])
@settings(max_examples=10)
@given(topology=machines(max_size=5))
def test_whole_shares_cost_less_than_a_thousandth(flow, topology):
    root = None if flow is Flow.BOTH else 0
    packing, certificate = pack(topology, flow, root, loss=Fraction(0))
    planned = in_shares(topology, packing, certificate)
    assert planned.bound * Fraction(999, 1000) <= planned.rate <= planned.bound
    assert planned.trees[-1].stop == planned.shares


def test_rates_without_a_small_common_measure_are_rounded():
    lanes = {(0, 1): 10_091, (1, 2): 20_029, (2, 0): 30_011, (0, 3): 40_009, (2, 3): 9973}
    mesh = mesh_of(4, lanes | {(b, a): capacity for (a, b), capacity in lanes.items()})
    planned = in_shares(mesh, *pack(mesh, Flow.BOTH, loss=Fraction(0)))
    assert planned.shares >= FEW_SHARES
    assert planned.bound * Fraction(999, 1000) <= planned.rate < planned.bound


@pytest.mark.parametrize(("tried", "taken"), [((2, 3, 4096), 4096), ((2, 3), 3)])
def test_more_shares_are_tried_until_rounding_costs_little(monkeypatch, tried, taken):
    monkeypatch.setattr(make, "FEW_SHARES", 1)
    monkeypatch.setattr(make, "_MORE_SHARES", tried)
    topology = machine("dgx-1v")
    planned = in_shares(topology, *pack(topology, Flow.BOTH))
    assert planned.shares == taken


def test_links_that_join_not_all_ranks_have_no_plan():
    with pytest.raises(UnreachableRankError):
        make_plan(mesh_of(3, {(0, 1): 1, (1, 0): 1}))
