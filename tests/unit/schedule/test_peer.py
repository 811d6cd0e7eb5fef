"""What a ring library would choose from, and the chunks that it would take."""

import pytest

from blinkrun.errors import PlanError, ProgramError
from blinkrun.schedule.peer import DOUBLE_TREES, STEP_BYTES, ring_programs
from blinkrun.schedule.routes import Routes
from blinkrun.schedule.verify import verify
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce
from blinkrun.types import Collective

DGX1V, DGX2 = machine("dgx-1v", "all"), machine("dgx-2", "all")
COLLECTIVES = [
    Collective.ALLREDUCE,
    Collective.BROADCAST,
    Collective.REDUCE,
    Collective.ALLGATHER,
    Collective.REDUCESCATTER,
]


@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda collective: collective.label)
def test_they_verify_over_the_links(collective):
    for topology in (induce(DGX1V, [0, 1, 4]), DGX1V, induce(DGX2, range(5)), DGX2):
        for each in ring_programs(topology, collective, 2):
            verify(each.program, links=Routes(topology).pairs())
            assert each.program.collective is collective


def test_double_binary_trees_are_for_allreduce_behind_switches():
    for topology, collective, names in [
        (DGX2, Collective.ALLREDUCE, ["ring", DOUBLE_TREES]),
        (DGX2, Collective.BROADCAST, ["ring"]),
        (induce(DGX2, [3, 9]), Collective.ALLREDUCE, ["ring", DOUBLE_TREES]),
        (DGX1V, Collective.ALLREDUCE, ["ring"]),
        (induce(DGX1V, [0, 1, 2, 3]), Collective.ALLREDUCE, ["ring"]),
        (machine("dgx-2", "pcie"), Collective.ALLREDUCE, ["ring"]),
    ]:
        assert [each.name for each in ring_programs(topology, collective)] == names


def test_chunks_are_slices_of_the_librarys_buffers():
    """1 MB where a slice has two steps, 512 KB where it has one; six lanes at once on a DGX-2."""
    for collective in COLLECTIVES:
        steps = 1 if collective.is_rooted else 2
        (mesh,) = ring_programs(DGX1V, collective)
        assert (mesh.channels, mesh.lanes) == (12 // 2, 1)
        assert mesh.chunk_bytes == mesh.chunk_bytes_of(1 << 32) == steps * STEP_BYTES
        switched = ring_programs(DGX2, collective, lane=23_000)[0]
        assert (switched.channels, switched.lanes) == (6, 6)
        assert switched.chunk_bytes == 6 * steps * STEP_BYTES


@pytest.mark.parametrize("topology", [DGX1V, DGX2], ids=lambda topology: topology.name)
def test_chunks_never_grow_as_data_shrinks(topology):
    for each in ring_programs(topology, Collective.ALLREDUCE):
        chunks = [each.chunk_bytes_of(1 << power) for power in range(33)]
        assert chunks == sorted(chunks)
        assert chunks[-1] == each.chunk_bytes
        assert chunks[0] > 0


def test_small_blocks_are_cut_in_two_and_not_below_what_is_sent_at_once():
    (mesh,) = ring_programs(DGX1V, Collective.ALLREDUCE)
    block = 300_000
    assert mesh.chunk_bytes_of(6 * 8 * block) == block // 2
    assert mesh.chunk_bytes_of(6 * 8 * 1000) == 16 << 10


def test_what_cannot_be_is_said():
    with pytest.raises(ProgramError, match="alltoall is nothing that rings do"):
        ring_programs(DGX1V, Collective.ALLTOALL)
    with pytest.raises(PlanError, match="a single rank has no ring"):
        ring_programs(induce(DGX1V, [0]), Collective.ALLREDUCE)
    apart = induce(machine("dgx-1v"), [0, 1, 4])
    with pytest.raises(ProgramError, match="no ring joins the 3 ranks"):
        ring_programs(apart, Collective.ALLREDUCE)
