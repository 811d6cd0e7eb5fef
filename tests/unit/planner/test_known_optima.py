"""Published and computed optima of real machines."""

from fractions import Fraction
from functools import cache

import pytest
from support.paper import bounds, gpus
from support.topologies import host_of

from blinkrun.planner.certificate import check_certificate
from blinkrun.planner.make import make_plan
from blinkrun.planner.packing import Flow, check_packing
from blinkrun.planner.solve import pack
from blinkrun.topology.catalog import machine
from blinkrun.topology.cpu import cpu_topology
from blinkrun.topology.graph import induce

EXACT = Fraction(0)


def optimum(topology, flow, root=None):
    """The rate of an exact packing, checked and proven."""
    packing, certificate = pack(topology, flow, root, loss=EXACT)
    check_packing(topology, packing)
    assert check_certificate(topology, certificate) == packing.rate
    return packing.rate


@pytest.mark.parametrize(("name", "row"), bounds("dgx1v") + bounds("dgx1p"))
def test_gpu_sets_of_the_paper(name, row):
    topology = induce(machine(name), gpus(row["gpus"]))
    best = max(optimum(topology, Flow.DOWN, root) for root in range(topology.size))
    assert best == int(row["min_cut_lanes"])
    allreduce = optimum(topology, Flow.BOTH)
    assert f"{float(allreduce):.2f}" == row["partition_bound_lanes"]


@pytest.mark.parametrize(("name", "row"), bounds("dgx1v") + bounds("dgx1p"))
def test_gpu_sets_of_the_paper_take_few_trees_at_a_small_loss(name, row):
    topology = induce(machine(name), gpus(row["gpus"]))
    loss = Fraction(1, 20)
    packing, certificate = pack(topology, Flow.BOTH, loss=loss)
    check_packing(topology, packing)
    assert packing.rate >= check_certificate(topology, certificate) * (1 - loss)
    assert len(packing.trees) <= 6
    for root in range(topology.size):
        assert len(pack(topology, Flow.DOWN, root, loss=loss)[0].trees) <= 6


def test_the_paper_lists_all_connected_sets():
    assert (len(bounds("dgx1v")), len(bounds("dgx1p"))) == (46, 14)


@pytest.mark.parametrize(
    ("topology", "broadcast", "allreduce"),
    [
        (machine("dgx-1v"), 6, Fraction(24, 7)),
        (machine("dgx-1p"), 4, Fraction(16, 7)),
        (induce(machine("dgx-1v"), [0, 1, 4]), 1, 1),
        (machine("dgx-2"), 6, Fraction(16, 5)),
        (machine("dgx-1v", "pcie"), 6000, Fraction(40_000, 7)),
        (machine("dgx-1v", "all"), 143_000, Fraction(572_000, 7)),
    ],
    ids=["dgx-1v", "dgx-1p", "dgx-1v-014", "dgx-2", "dgx-1v-pcie", "dgx-1v-all"],
)
def test_optima_of_whole_machines(topology, broadcast, allreduce):
    assert optimum(topology, Flow.DOWN, 0) == broadcast
    assert optimum(topology, Flow.UP, 0) == broadcast
    assert optimum(topology, Flow.BOTH) == allreduce


@cache
def plan_of(name, loss=Fraction(1, 20)):
    return make_plan(machine(name), loss=loss)


@pytest.mark.parametrize(("name", "cut"), [("dgx-1v", 6), ("dgx-1p", 4)])
def test_broadcast_of_a_dgx1_takes_one_unit_tree_per_lane_of_the_cut(name, cut):
    for packing in (*plan_of(name).broadcast, *plan_of(name).reduce):
        assert (len(packing.trees), packing.shares, packing.rate) == (cut, cut, cut)
        assert packing.depth <= 6


@pytest.mark.parametrize(
    ("name", "loss", "trees", "depth"),
    [
        ("dgx-1v", Fraction(1, 20), 6, 4),
        ("dgx-1p", Fraction(1, 20), 6, 3),
        ("dgx-1v", EXACT, 14, 4),
        ("dgx-1p", EXACT, 10, 4),
    ],
)
def test_allreduce_of_a_dgx1_takes_few_shallow_trees(name, loss, trees, depth):
    packing = plan_of(name, loss).allreduce
    assert packing.rate >= packing.bound * (1 - loss) * Fraction(999, 1000)
    assert len(packing.trees) <= trees
    assert packing.depth <= depth


@pytest.mark.parametrize(
    "topology",
    [machine("dgx-2"), *(cpu_topology(host_of(1, 2), ranks) for ranks in (2, 3, 4, 16))],
    ids=lambda topology: f"{topology.name.split(',')[0].replace(' ', '-')}-{topology.size}",
)
def test_switches_get_one_hop_stars_round_every_rank(topology):
    packing = make_plan(topology).allreduce
    assert [tree.root for tree in packing.trees] == list(range(topology.size))
    assert packing.shares == topology.size
    assert (packing.depth, packing.is_optimal) == (1, True)


def test_broadcast_in_shared_memory_is_read_by_all_at_once():
    for packing in make_plan(cpu_topology(host_of(1, 4), 4)).broadcast:
        assert (len(packing.trees), packing.depth, packing.is_optimal) == (1, 1, True)


def test_reduce_in_shared_memory_spreads_the_reading():
    for root, packing in enumerate(make_plan(cpu_topology(host_of(1, 4), 4)).reduce):
        assert [len(tree.children(root)) for tree in packing.trees] == [1, 1, 1]
        assert (packing.depth, packing.is_optimal) == (2, True)


def test_data_crosses_between_sockets_once():
    plan = make_plan(cpu_topology(host_of(2, 4), 8))
    for packing in plan.broadcast:
        assert packing.is_optimal
        for tree in packing.trees:
            crossings = [c for c, p in enumerate(tree.parents) if p >= 0 and (p < 4) != (c < 4)]
            assert len(crossings) == 1
