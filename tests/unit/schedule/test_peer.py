"""What a ring library would choose from, and the chunks that it would take."""

from fractions import Fraction

import pytest

from blinkrun.errors import PlanError, ProgramError
from blinkrun.planner.packing import Flow
from blinkrun.planner.rings import RingKind, ring_peer
from blinkrun.schedule.peer import DOUBLE_TREES, STEP_BYTES, ring_programs
from blinkrun.schedule.routes import Routes, ways
from blinkrun.schedule.verify import verify
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import LinkKind, induce, select_links
from blinkrun.topology.hosts import join_hosts
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


@pytest.mark.parametrize(
    ("gpus", "over_pcie"),
    [([1, 5, 6], False), ([1, 5, 6, 7], False), ([3, 6, 7], True), ([1, 4, 5, 6, 7], True)],
)
def test_without_nvlink_rings_devices_come_in_order(gpus, over_pcie):
    """So a broadcast crosses PCIe where NCCL's did (figure 14): 9 GB/s, and 25 without."""
    topology = induce(DGX1V, gpus)
    (peer,) = ring_programs(topology, Collective.BROADCAST)
    kinds = {kind for _, _, kind in ways(peer.program)}
    assert (len(kinds) > 1) is over_pcie
    shuffled = induce(DGX1V, [*gpus[1:], gpus[0]])
    order = ring_peer(shuffled, Flow.DOWN, 0).rings[0].order
    assert [shuffled.devices[rank] for rank in order] == gpus


def test_over_hosts_a_ring_visits_each_once_and_pays_for_pcie():
    hosts = [induce(DGX1V, [0, 1, 2]), induce(DGX1V, [3, 4, 5, 6, 7])]
    for gbps, width in [(40, 5000), (100, 10_000), (400, 10_000)]:
        joined = join_hosts(hosts, network_gbps=gbps)
        (peer,) = ring_programs(joined, Collective.ALLREDUCE, lane=23_000)
        verify(peer.program, links=Routes(joined).pairs())
        rings = ring_peer(peer.topology, Flow.BOTH)
        assert (rings.kind, rings.rate) == (RingKind.NETWORK, width * Fraction(8, 14))
        kinds = [kind for _, _, kind in ways(peer.program)]
        assert (kinds.count("network"), kinds.count("nvlink")) == (2, 6)


def test_hosts_without_a_path_of_nvlinks_are_crossed_over_pcie():
    hosts = [induce(DGX1V, [0, 1, 4]), induce(DGX1V, [0, 6, 7]), induce(DGX1V, [5])]
    joined = join_hosts(hosts, network_gbps=100)
    (peer,) = ring_programs(joined, Collective.ALLREDUCE)
    verify(peer.program, links=Routes(joined).pairs())
    kinds = [kind for _, _, kind in ways(peer.program)]
    assert kinds.count("network") == 3
    assert len(kinds) == 7


def test_hosts_whose_own_links_do_not_join_them_use_the_network():
    """Ranks 0 and 4 of a DGX-1 are not linked but for NVLink through others."""
    apart = select_links(induce(DGX1V, [0, 5]), [LinkKind.NVLINK])
    joined = join_hosts([apart, induce(DGX1V, [1, 2])], network_gbps=100)
    (peer,) = ring_programs(joined, Collective.ALLREDUCE)
    verify(peer.program, links=Routes(joined).pairs())


def capacity_of(topology, name):
    return next(each.capacity for each in topology.resources if each.name == name)


def test_a_ring_takes_one_lane_of_a_hop():
    """1-5 and 5-6 have two lanes each; NCCL broadcast 25 GB/s over them, not 45."""
    three = induce(DGX1V, [1, 5, 6])
    (peer,) = ring_programs(three, Collective.BROADCAST, lane=23_000)
    for hop in ("nvlink 1->5", "nvlink 5->6"):
        assert capacity_of(three, hop) == 46_000
        assert capacity_of(peer.topology, hop) == 23_000
    both = induce(DGX1V, [0, 3])  # two rings: both lanes are taken
    assert ring_programs(both, Collective.BROADCAST, lane=23_000)[0].topology == both
    assert ring_programs(DGX2, Collective.BROADCAST)[0].topology == DGX2


def test_what_cannot_be_is_said():
    with pytest.raises(ProgramError, match="alltoall is nothing that rings do"):
        ring_programs(DGX1V, Collective.ALLTOALL)
    with pytest.raises(PlanError, match="a single rank has no ring"):
        ring_programs(induce(DGX1V, [0]), Collective.ALLREDUCE)
    apart = induce(machine("dgx-1v"), [0, 1, 4])
    with pytest.raises(ProgramError, match="no ring joins the 3 ranks"):
        ring_programs(apart, Collective.ALLREDUCE)
