"""Max-min fair trees: they fit, no channel could have more, and lose little of the best rate."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import machines

from blinkrun.errors import PlanError
from blinkrun.planner.packing import Flow, check_packing, resource_loads
from blinkrun.planner.solve import pack
from blinkrun.select.fair import fair_packing
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce

FLOWS = [(Flow.BOTH, None), (Flow.DOWN, 0), (Flow.UP, 0), (Flow.ALL_DOWN, None)]


@pytest.mark.parametrize(("flow", "root"), FLOWS)
@settings(max_examples=10)
@given(topology=machines(max_size=5), most=st.integers(1, 12))
def test_it_fits_and_no_channel_could_have_more_without_taking_from_a_slower_one(
    topology, flow, root, most
):
    planned, _ = pack(topology, flow, root, loss=Fraction(0))
    fair = fair_packing(topology, [planned], most_channels=most)
    check_packing(topology, fair)
    assert set(fair.trees) <= set(planned.trees)
    assert len(fair.trees) <= most * (topology.size if flow.is_joint else 1)
    if flow.is_joint:  # rates of the roots are made equal, down from the fair ones
        return
    capacity = {part.name: part.capacity for part in topology.resources}
    loads = resource_loads(topology, fair)
    for tree, rate in zip(fair.trees, fair.rates, strict=True):
        taken = {
            n for edge in tree.edges for at in edge.links for n in topology.links[at].resources
        }
        full = [name for name in taken if loads[name] == capacity[name]]
        fastest_there = [
            max(
                other
                for one, other in zip(fair.trees, fair.rates, strict=True)
                if any(name in topology.links[at].resources for e in one.edges for at in e.links)
            )
            for name in full
        ]
        assert rate in fastest_there  # a full link on which nobody has more


@pytest.mark.parametrize("gpus", [(1, 4, 5, 7), (0, 1, 4, 5, 7)])
@pytest.mark.parametrize(("flow", "root"), [(Flow.BOTH, None), (Flow.DOWN, 0)])
def test_with_channels_enough_little_of_the_best_rate_is_lost(gpus, flow, root):
    topology = induce(machine("dgx-1v", "all"), gpus)
    planned, _ = pack(topology, flow, root, loss=Fraction(0))
    fair = fair_packing(topology, [planned], most_channels=48)
    assert fair.rate >= planned.rate * Fraction(96, 100)


@pytest.mark.parametrize("packings", [0, 1])
def test_no_trees_and_no_channels_are_refused(packings):
    planned, _ = pack(machine("dgx-2"), Flow.BOTH)
    with pytest.raises(PlanError, match="channels"):
        fair_packing(machine("dgx-2"), [planned] * packings, most_channels=packings - 1)
