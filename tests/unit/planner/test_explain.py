"""Certificates in words: the parts that free links join, and a sentence that ends in the bound."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from support.topologies import host_of, machines, mesh_of

from blinkrun.planner.certificate import Certificate, check_certificate
from blinkrun.planner.explain import partition, why
from blinkrun.planner.packing import Flow
from blinkrun.planner.solve import pack
from blinkrun.topology.catalog import machine
from blinkrun.topology.cpu import cpu_topology
from blinkrun.topology.graph import induce

FLOWS = [
    (Flow.BOTH, None),
    (Flow.DOWN, 0),
    (Flow.UP, 1),
    (Flow.ALL_DOWN, None),
    (Flow.ALL_UP, None),
]
DGX1V = machine("dgx-1v")
PCIE = machine("dgx-1v", "pcie")


@pytest.mark.parametrize(("flow", "root"), FLOWS)
@settings(max_examples=10)
@given(topology=machines(max_size=5))
def test_every_certificate_has_words_that_end_in_the_bound(topology, flow, root):
    packing, certificate = pack(topology, flow, root)
    parts = partition(topology, certificate)
    assert sorted(rank for part in parts for rank in part) == list(range(topology.size))
    words = why(topology, certificate, packing)
    bound = check_certificate(topology, certificate)
    units = "s" if topology.unit == "lane" and bound != 1 else ""
    gigabytes = Fraction(bound, 1000)
    assert words.endswith(
        (
            f" exceeds {bound} {topology.unit}{units}",
            f" exceeds {float(gigabytes):g} GB/s",
            f" ({gigabytes})",
        )
    )
    assert "\n" not in words
    assert words.startswith("optimal") is (packing.rate == bound)


def words_of(topology, flow, root=None):
    packing, certificate = pack(topology, flow, root, loss=Fraction(0))
    return why(topology, certificate, packing)


@pytest.mark.parametrize(
    ("topology", "flow", "root", "words"),
    [
        (
            induce(DGX1V, [0, 1, 4]),
            Flow.DOWN,
            1,
            "optimal: GPU 1 -> GPUs 0 4: 1 lane leads across, every tree takes 1; "
            "no broadcast from GPU 1 exceeds 1 lane",
        ),
        (
            induce(DGX1V, [0, 1, 4]),
            Flow.UP,
            1,
            "optimal: GPUs 0 4 -> GPU 1: 1 lane leads across, every tree takes 1; "
            "no reduce to GPU 1 exceeds 1 lane",
        ),
        (
            DGX1V,
            Flow.DOWN,
            0,
            "optimal: GPU 0 -> GPUs 1 2 3 4 5 6 7: 6 lanes lead across, every tree takes 1; "
            "no broadcast from GPU 0 exceeds 6 lanes",
        ),
        (
            induce(DGX1V, [5, 6, 7]),
            Flow.BOTH,
            None,
            "optimal: GPU 5 | GPU 6 | GPU 7: 5 lanes join them, every tree takes 2; "
            "no allreduce exceeds 5/2 lanes",
        ),
        (
            PCIE,
            Flow.DOWN,
            0,
            "optimal: GPUs 0 1 2 3 | GPUs 4 5 6 7: qpi 0->1 carries 6 GB/s, every tree takes "
            "it once; no broadcast from GPU 0 exceeds 6 GB/s",
        ),
        (
            induce(PCIE, [0, 1, 4]),
            Flow.BOTH,
            None,
            "optimal: GPUs 0 1 | GPU 4: qpi 0->1 and qpi 1->0 carry 12 GB/s together, "
            "every tree takes them twice; no allreduce exceeds 6 GB/s",
        ),
        (
            machine("dgx-2"),
            Flow.BOTH,
            None,
            "optimal: 16 of 'port # in' and 16 of 'port # out' carry 192 lanes together, "
            "every tree takes them 60 times; no allreduce exceeds 16/5 lanes",
        ),
        (
            machine("dgx-2"),
            Flow.ALL_DOWN,
            None,
            "optimal: 16 of 'port # in' and 16 of 'port # out' carry 192 lanes together, every "
            "tree takes them 30 times on average over the roots; no allgather exceeds 32/5 lanes",
        ),
    ],
)
def test_what_bounds_known_machines(topology, flow, root, words):
    assert words_of(topology, flow, root) == words


def test_unlike_prices_are_shares_of_the_bound():
    words = words_of(machine("dgx-1v", "all"), Flow.BOTH)
    assert "every tree takes shares of" in words
    shares = [Fraction(share) for share in re.findall(r"\(([\d.]+) % of the bound\)", words)]
    assert len(shares) > 1
    assert sum(shares) == pytest.approx(100, abs=1)


def test_a_plan_below_the_bound_says_how_far():
    packing, certificate = pack(DGX1V, Flow.BOTH, loss=Fraction(1, 2))
    slower = replace(packing, rates=tuple(rate / 2 for rate in packing.rates))
    words = why(DGX1V, certificate, slower)
    percent = float(words.partition(" %")[0])
    assert percent == pytest.approx(float(100 * slower.rate / Fraction(24, 7)), abs=0.01)


def test_cores_are_called_cores():
    topology = cpu_topology(host_of(2, 2), 4)
    packing, certificate = pack(topology, Flow.DOWN, 0)
    assert "no broadcast from core 0 exceeds" in why(topology, certificate, packing)


def test_parts_of_a_rooted_flow_start_at_the_root():
    """Of the rest, what free links join in either direction is one part."""
    lanes = {(0, 1): 1, (0, 2): 1, (2, 3): 9}
    mesh = mesh_of(4, lanes | {(b, a): 1 for a, b in lanes})
    prices = (("wire (0, 1)", Fraction(1, 2)), ("wire (0, 2)", Fraction(1, 2)))
    assert partition(mesh, Certificate(Flow.DOWN, 0, prices)) == ((0,), (1,), (2, 3))
    _, certificate = pack(mesh, Flow.UP, 0)
    assert partition(mesh, certificate)[0][0] == 0


def test_three_parts_of_a_rooted_flow_are_no_cut():
    mesh = mesh_of(3, {(0, 1): 1, (0, 2): 1, (1, 0): 1, (2, 0): 1})
    packing, _ = pack(mesh, Flow.DOWN, 0)
    prices = (("wire (0, 1)", Fraction(1, 2)), ("wire (0, 2)", Fraction(1, 2)))
    certificate = Certificate(Flow.DOWN, 0, prices)
    assert check_certificate(mesh, certificate) == 1
    words = why(mesh, certificate, packing)
    assert (
        "wire (0, 1) and wire (0, 2) carry 2 lanes together, every tree takes them twice" in words
    )


def test_relays_are_in_no_part():
    relayed = induce(DGX1V, [0, 1, 4], relays=[5])
    for flow, root in FLOWS:
        _, certificate = pack(relayed, flow, root)
        parts = partition(relayed, certificate)
        assert sorted(rank for part in parts for rank in part) == [0, 1, 2]
