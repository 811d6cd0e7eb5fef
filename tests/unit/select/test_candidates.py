"""The trees to choose from: right programs, no two the same, all with one bound."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from support.topologies import machines

from blinkrun.errors import UsageError
from blinkrun.planner.packing import Flow
from blinkrun.planner.solve import pack
from blinkrun.schedule.lower import lower_packing
from blinkrun.schedule.routes import Routes
from blinkrun.schedule.verify import verify
from blinkrun.select.candidates import FABRIC_ONLY, candidates_for
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce
from blinkrun.types import Collective

OVER_TREES = [c for c in Collective if c not in (Collective.BARRIER, Collective.ALLTOALL)]


@pytest.mark.parametrize("collective", OVER_TREES, ids=lambda collective: collective.label)
@settings(max_examples=4)
@given(topology=machines(max_size=4))
def test_every_candidate_makes_a_right_program_over_the_links_there_are(topology, collective):
    found = candidates_for(topology, collective, root=topology.size - 1)
    root = topology.size - 1 if collective.is_rooted else 0
    for one in found:
        program = lower_packing(one.packing, collective, root=root)
        verify(program, links=Routes(topology).pairs())
    assert len({one.packing.trees for one in found}) == len(found)
    assert len({one.packing.bound for one in found}) == 1


@pytest.mark.parametrize(("collective", "flow"), [(Collective.ALLREDUCE, Flow.BOTH)])
@pytest.mark.parametrize("gpus", [(1, 4, 5, 7), (0, 1, 4, 5, 7)])
def test_beside_pcie_the_fabric_has_candidates_of_its_own(gpus, collective, flow):
    topology = induce(machine("dgx-1v", "all"), gpus)
    found = candidates_for(topology, collective)
    alone = [one for one in found if FABRIC_ONLY in one.trees]
    assert alone
    kinds = {k for one in alone for tree in one.packing.trees for k in (*tree.up, *tree.down)}
    assert kinds == {"", "nvlink"}
    best, _ = pack(topology, flow, loss=Fraction(0))
    assert max(one.packing.rate for one in found) >= best.rate * Fraction(96, 100)
    assert min(one.packing.depth for one in found) == 1


@pytest.mark.parametrize("collective", [Collective.BARRIER, Collective.ALLTOALL])
def test_what_runs_over_no_trees_is_refused(collective):
    with pytest.raises(UsageError, match=collective.label):
        candidates_for(machine("dgx-2"), collective)
