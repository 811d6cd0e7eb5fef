"""NVLink and PCIe in one tree: everything that a GPU set has is used, exactly."""

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from support.topologies import mixed

from blinkrun.errors import UnreachableRankError
from blinkrun.planner.certificate import check_certificate
from blinkrun.planner.make import make_plan
from blinkrun.planner.packing import Flow, check_packing
from blinkrun.planner.solve import pack
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import LinkKind, induce, select_links

EXACT = Fraction(0)
DGX1 = machine("dgx-1v", "all")


def optimum(topology, flow, root=None):
    packing, certificate = pack(topology, flow, root, loss=EXACT)
    check_packing(topology, packing)
    assert check_certificate(topology, certificate) == packing.rate
    return packing


@pytest.mark.parametrize("flow", Flow)
@settings(max_examples=4)
@given(topology=mixed(max_size=4))
def test_all_links_are_no_slower_than_those_of_one_kind(flow, topology):
    root = 0 if flow.is_rooted else None
    everything = optimum(topology, flow, root)
    for kinds in ([LinkKind.NVLINK], [LinkKind.PCIE, LinkKind.STAGED]):
        try:
            some, _ = pack(select_links(topology, kinds), flow, root, loss=EXACT)
        except UnreachableRankError:
            continue
        assert everything.rate >= some.rate


def test_an_allocation_that_nvlink_does_not_join_uses_what_it_has():
    topology = induce(DGX1, (0, 1, 6, 7))
    with pytest.raises(UnreachableRankError):
        pack(select_links(topology, [LinkKind.NVLINK]), Flow.BOTH)
    packing = optimum(topology, Flow.BOTH)
    kinds = {
        topology.links[link].kind for tree in packing.trees for e in tree.edges for link in e.links
    }
    assert LinkKind.NVLINK in kinds
    assert kinds & {LinkKind.PCIE, LinkKind.STAGED}
    pcie = select_links(topology, [LinkKind.PCIE, LinkKind.STAGED])
    assert packing.rate > pack(pcie, Flow.BOTH, loss=EXACT)[0].rate


def test_the_plan_names_the_kind_of_every_link():
    topology = induce(DGX1, (0, 1, 6, 7))
    wired = {(link.src, link.dst, link.kind.value) for link in topology.links}
    plan = make_plan(topology)
    one_way = [(packing, "down") for packing in (*plan.broadcast, plan.allgather)]
    one_way += [(packing, "up") for packing in (*plan.reduce, plan.reducescatter)]
    used = set()
    for packing, ways in [(plan.allreduce, "up down"), *one_way]:
        for tree in packing.trees:
            for rank, parent in enumerate(tree.parents):
                up, down = tree.up[rank], tree.down[rank]
                assert bool(up) == ("up" in ways and rank != tree.root)
                assert bool(down) == ("down" in ways and rank != tree.root)
                used |= {(rank, parent, up)} if up else set()
                used |= {(parent, rank, down)} if down else set()
    assert used <= wired
    assert len({kind for _, _, kind in used}) > 1


@pytest.mark.parametrize(
    "gpus", [(0, 1), (0, 5), (0, 1, 4), (0, 5, 6), (1, 2, 4, 7), (0, 1, 2, 5, 6)], ids=str
)
@pytest.mark.parametrize("flow", Flow)
def test_optima_of_allocations_with_all_links_are_exact(gpus, flow):
    optimum(induce(DGX1, gpus), flow, 0 if flow.is_rooted else None)


@pytest.mark.slow
@pytest.mark.parametrize("count", range(3, 9))
def test_optima_of_every_allocation_are_exact(count):
    for gpus in combinations(range(8), count):
        optimum(induce(DGX1, gpus), Flow.BOTH)
