"""One-hop trees: stars at the best rates, where all ranks are linked."""

from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given, settings
from support.topologies import doubled, meshes, pcie_trees, switches

from blinkrun.errors import UsageError
from blinkrun.planner import lp
from blinkrun.planner.certificate import check_certificate
from blinkrun.planner.onehop import onehop_packing, pack_onehop
from blinkrun.planner.packing import Flow, check_packing
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce

FLOWS = [
    (Flow.BOTH, None),
    (Flow.DOWN, 0),
    (Flow.UP, 1),
    (Flow.ALL_DOWN, None),
    (Flow.ALL_UP, None),
]


@pytest.mark.parametrize(("flow", "root"), FLOWS)
@settings(max_examples=10)
@given(topology=switches(max_size=5) | pcie_trees(max_size=4))
def test_stars_fit_and_are_one_hop_deep(topology, flow, root):
    packing, certificate = pack_onehop(topology, flow, root)
    check_packing(topology, packing)
    assert packing.rate <= check_certificate(topology, certificate)
    for tree in packing.trees:
        assert {edge.parent for edge in tree.edges} == {tree.root}


@settings(max_examples=10)
@given(switches(max_size=5))
def test_no_fixed_share_of_the_stars_is_faster(topology):
    """The best rates are at least those of equal stars and those of every star alone."""
    packing = onehop_packing(topology, Flow.BOTH)
    out = {r.name: r.capacity for r in topology.resources}
    hops = topology.size - 1
    for hub in range(topology.size):
        ends = [f"port {hub} out", f"port {hub} in"]
        others = [name for name in out if name not in ends]
        alone = min(Fraction(out[name], hops) for name in ends)
        alone = min(alone, *(out[name] for name in others))
        assert packing.rate >= alone
    assert packing.rate >= min(out.values()) * Fraction(topology.size, 2 * hops)


@pytest.mark.parametrize(
    ("flow", "root", "trees", "rate"),
    [
        (Flow.BOTH, None, 16, Fraction(16, 5)),
        (Flow.DOWN, 3, 1, Fraction(6, 15)),
        (Flow.UP, 3, 1, Fraction(6, 15)),
        (Flow.ALL_DOWN, None, 16, Fraction(32, 5)),
    ],
)
def test_dgx2(flow, root, trees, rate):
    packing, certificate = pack_onehop(machine("dgx-2"), flow, root)
    assert (len(packing.trees), packing.rate) == (trees, rate)
    assert packing.rate <= check_certificate(machine("dgx-2"), certificate)


def test_a_star_takes_the_widest_of_parallel_links():
    whole = machine("dgx-1v", "all")
    packing = onehop_packing(induce(whole, [0, 3]), Flow.DOWN, 0)
    assert packing.rate == 2 * 23_000


def test_two_ranks_share_one_star():
    topology = induce(machine("dgx-1v"), [0, 3])
    for bound in (Fraction(0), Fraction(2)):
        packing = onehop_packing(topology, Flow.BOTH, bound=bound)
        check_packing(topology, packing)
        assert packing.rate == 2


def test_equal_rates_are_kept_where_the_exact_ones_are_not_found(monkeypatch):
    monkeypatch.setattr(lp.Master, "exact", lambda self: None)
    topology = machine("dgx-2")
    packing = onehop_packing(topology, Flow.BOTH)
    assert set(packing.rates) == {Fraction(1, 5)}


@settings(max_examples=10)
@given(doubled(meshes(min_size=3, max_size=5)))
def test_two_ranks_without_a_link_are_named(topology):
    linked = {(link.src, link.dst) for link in topology.links}
    missing = [pair for pair in permutations(range(topology.size), 2) if pair not in linked]
    if not missing:
        onehop_packing(topology, Flow.BOTH)
        return
    with pytest.raises(UsageError, match="have none; use the exact method") as error:
        onehop_packing(topology, Flow.BOTH)
    named = [int(word.strip(",")) for word in str(error.value).split() if word.strip(",").isdigit()]
    assert tuple(named) in missing or tuple(reversed(named)) in missing


def test_gpus_are_named_as_the_machine_does():
    with pytest.raises(UsageError, match="7 and 2 have none"):
        pack_onehop(induce(machine("dgx-1v"), [7, 3, 2]), Flow.DOWN, 0)
