"""The best packing beside the ring library: best roots, and the gains that the paper shows."""

from statistics import geometric_mean, median

import pytest
from hypothesis import given, settings
from support.paper import bounds, gpus
from support.topologies import least_cut, mesh_of, meshes

from blinkrun.errors import UnreachableRankError
from blinkrun.planner.compare import best_root, compare
from blinkrun.planner.packing import Flow
from blinkrun.planner.rings import ring_peer
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce

LANE = {"dgx-1v": 23_000, "dgx-1p": 19_000}


@settings(max_examples=15)
@given(meshes(max_size=5))
def test_the_best_root_is_the_one_with_the_largest_least_cut(topology):
    cuts = [least_cut(topology, root) for root in range(topology.size)]
    assert best_root(topology, Flow.DOWN) == cuts.index(max(cuts))
    cuts = [least_cut(topology, root, to_root=True) for root in range(topology.size)]
    assert best_root(topology, Flow.UP) == cuts.index(max(cuts))
    assert compare(topology, Flow.UP).rate == max(cuts)
    assert compare(topology, Flow.UP, 0).packing.root == 0


def test_without_a_ring_there_is_no_ratio():
    three = compare(induce(machine("dgx-1v"), [0, 1, 4]))
    assert (three.rate, three.ring_rate, three.ratio) == (1, 0, None)


def test_ranks_that_nothing_joins_are_named():
    with pytest.raises(UnreachableRankError):
        compare(mesh_of(3, {(0, 1): 1, (1, 0): 1}), Flow.DOWN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flow", "middle"),
    [
        ("dgx1v", Flow.BOTH, 2.04),
        ("dgx1v", Flow.DOWN, 1.5),
        ("dgx1p", Flow.BOTH, 1.39),
        ("dgx1p", Flow.DOWN, 1.25),
    ],
)
def test_the_median_gain_is_that_of_figure_13(name, flow, middle):
    """The paper's theoretical speedups, NVLink trees against rings over NVLink or PCIe."""
    ratios = []
    for case in bounds(name):
        machine_name, row = case.values
        chosen = gpus(row["gpus"])
        lanes = compare(induce(machine(machine_name), chosen), flow).rate
        ring = ring_peer(
            induce(machine(machine_name, "all"), chosen), flow, lane=LANE[machine_name]
        )
        ratios.append(float(lanes * LANE[machine_name] / ring.rate))
    assert min(ratios) >= 1
    assert median(ratios) == pytest.approx(middle, rel=0.2)
    assert geometric_mean(ratios) > 1.6
