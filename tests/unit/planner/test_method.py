"""Every way to plan gives what fits, and no more than the exact one."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from support.topologies import mesh_of, meshes, pcie_trees, switches

from blinkrun.errors import PlanError, UnreachableRankError, UsageError
from blinkrun.planner import lp
from blinkrun.planner.certificate import check_certificate
from blinkrun.planner.method import Method, pack_by, pack_paper
from blinkrun.planner.packing import Flow, check_packing
from blinkrun.planner.solve import pack
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology, induce

DGX1V = machine("dgx-1v")
ALL = machine("dgx-1v", "all")
FLOWS = [(Flow.BOTH, None), (Flow.DOWN, 0), (Flow.UP, 1)]


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize(("flow", "root"), FLOWS)
@settings(max_examples=5)
@given(topology=meshes(max_size=4) | switches(max_size=4) | pcie_trees(max_size=4))
def test_every_method_fits_and_is_bounded_by_the_exact_one(topology, method, flow, root):
    try:
        packing, certificate = pack_by(method, topology, flow, root, loss=Fraction(0))
    except UsageError:
        assert method is Method.ONEHOP
        return
    check_packing(topology, packing)
    best, _ = pack(topology, flow, root, loss=Fraction(0))
    assert packing.rate <= best.rate <= check_certificate(topology, certificate)


def test_the_exact_method_is_the_planner():
    loss, floor = Fraction(1, 3), Fraction(3)
    expected = pack(DGX1V, Flow.BOTH, loss=loss, floor=floor)
    assert pack_by(Method.EXACT, DGX1V, Flow.BOTH, loss=loss, floor=floor) == expected
    assert pack_by("exact", DGX1V, Flow.BOTH, loss=loss, floor=floor) == expected
    assert expected[0].rate >= floor


@pytest.mark.parametrize(("flow", "root", "rate"), [(Flow.DOWN, 0, 6), (Flow.BOTH, None, 24 / 7)])
def test_the_paper_thins_out_its_many_trees(flow, root, rate):
    many, _ = pack_by(Method.MWU, DGX1V, flow, root)
    few, _ = pack_by(Method.PAPER, DGX1V, flow, root)
    check_packing(DGX1V, few)
    assert len(few.trees) <= 10
    assert len(many.trees) > 40
    assert 0.95 * rate <= few.rate <= rate


def test_the_paper_broadcasts_over_six_unit_trees():
    """As in section 3 of the paper: 181 trees become 6 of one lane each."""
    packing, _ = pack_by(Method.PAPER, DGX1V, Flow.DOWN, 0)
    assert packing.rates == (Fraction(1),) * 6


def test_the_paper_takes_one_hop_trees_behind_a_switch():
    packing, _ = pack_by(Method.PAPER, machine("dgx-2"), Flow.BOTH)
    assert (len(packing.trees), packing.rate) == (16, Fraction(16, 5))
    broadcast, _ = pack_by(Method.PAPER, induce(machine("dgx-2"), range(4)), Flow.DOWN, 0)
    assert broadcast.rate > 1  # one hop from one root would be a third of a port


def test_the_paper_packs_nvlink_and_pcie_apart():
    three = induce(ALL, [0, 1, 4])
    both = pack_paper(three, Flow.DOWN, 0)
    assert (both.nvlink_rate, both.pcie_rate) == (23_000, 6_000)
    for packing, is_fabric in ((both.nvlink, True), (both.pcie, False)):
        check_packing(three, packing)
        kinds = {
            three.links[at].kind for tree in packing.trees for e in tree.edges for at in e.links
        }
        assert {kind.is_fabric for kind in kinds} == {is_fabric}
    split = both.split(500_000_000)
    assert 0 < split.pcie_bytes < split.nvlink_bytes
    assert both.split(1_000_000).pcie_bytes == 0
    packing, certificate = pack_by(Method.PAPER, three, Flow.DOWN, 0)
    assert packing == both.nvlink
    assert check_certificate(three, certificate) > packing.rate


def test_where_nvlink_leaves_a_gap_the_paper_falls_back_to_pcie():
    four = induce(ALL, [0, 5, 6, 7])
    both = pack_paper(four, Flow.BOTH)
    assert (both.nvlink, both.nvlink_rate) == (None, 0)
    packing, _ = pack_by(Method.PAPER, four, Flow.BOTH)
    assert packing == both.pcie
    assert both.split(1000).nvlink_bytes == 0


def test_lanes_do_not_split_bytes():
    both = pack_paper(DGX1V, Flow.DOWN, 0)
    assert (both.pcie, both.pcie_rate) == (None, 0)
    with pytest.raises(UsageError, match="rates in lanes do not split bytes"):
        both.split(1000)


def test_the_paper_cannot_join_what_only_both_kinds_join():
    mixed = Topology(
        name="mixed",
        devices=(0, 1, 2),
        links=tuple(
            Link(a, b, (f"{a}-{b}",), kind)
            for low, kind in ((0, LinkKind.NVLINK), (1, LinkKind.PCIE))
            for a, b in ((low, low + 1), (low + 1, low))
        ),
        resources=tuple(Resource(name, 5) for name in ("0-1", "1-0", "1-2", "2-1")),
        unit="MB/s",
    )
    assert pack_by(Method.EXACT, mixed, Flow.BOTH)[0].rate == 5
    with pytest.raises(UnreachableRankError):
        pack_by(Method.PAPER, mixed, Flow.BOTH)


def test_trees_of_the_weights_do_where_exact_rates_are_not_found(monkeypatch):
    monkeypatch.setattr(lp.Master, "exact", lambda self: None)
    both = pack_paper(induce(DGX1V, [0, 1, 2]), Flow.DOWN, 0)
    check_packing(induce(DGX1V, [0, 1, 2]), both.nvlink)


@pytest.mark.parametrize("method", [Method.MWU, Method.PAPER])
def test_what_weights_do_not_plan_is_refused(method):
    with pytest.raises(UsageError, match="do not plan allgather; use the exact method"):
        pack_by(method, DGX1V, Flow.ALL_DOWN)


@pytest.mark.parametrize("method", Method)
def test_contradicting_arguments_are_refused(method):
    with pytest.raises(PlanError, match="allreduce from root 0"):
        pack_by(method, mesh_of(2, {(0, 1): 1, (1, 0): 1}), Flow.BOTH, 0)
