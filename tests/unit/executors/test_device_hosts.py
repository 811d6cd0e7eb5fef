"""Programs of devices on several hosts: what those that hosts choose among have in common."""

import pytest

from blinkrun.errors import NotSupportedError
from blinkrun.executors.device_hosts import RING_DEPTH, DeviceHosts, most_chunk
from blinkrun.executors.device_programs import num_streams, pieces_of
from blinkrun.planner.hosts_plan import HostsPlan, Network
from blinkrun.schedule.ir import Addressing, Arrived, Recv, Send, Sent
from blinkrun.schedule.lower_hosts import lower_alltoall_hosts, lower_hosts
from blinkrun.topology.cpu import Cpu, Host, cpu_topology
from blinkrun.types import Collective

LAYOUTS = [((0,), (1,)), ((0, 1), (2, 3)), ((0,), (1, 2, 3)), ((0, 2), (1,), (3, 4))]
COLLECTIVES = [each for each in Collective if each is not Collective.BARRIER]
RINGS, SCRATCH, BLOCKS = 8 << 20, 4 << 20, 16


def programs_of(layout, collective):
    hosts = tuple(
        cpu_topology(Host(tuple(Cpu(at, at, 0, 0) for at in range(len(ranks)))), len(ranks))
        for ranks in layout
    )
    plan = HostsPlan(hosts, layout, (Network(1250),) * len(layout))
    if collective is Collective.ALLTOALL:
        return [lower_alltoall_hosts(plan.hosts_of, addressing=way) for way in Addressing]
    packing = plan.packing(collective, 0)
    return [lower_hosts(packing, collective, plan.hosts_of, addressing=way) for way in Addressing]


def streams_of(program, rank):
    """The streams of a rank as the core numbers them: in the order of its steps."""
    steps = [step for channel in program.ranks[rank].channels for step in channel.steps]
    messages = [step for step in steps if isinstance(step, (Send, Recv, Sent, Arrived))]
    return list(dict.fromkeys((s.rank, s.stream, isinstance(s, (Send, Sent))) for s in messages))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_streams_have_the_same_numbers_whatever_way_a_host_chooses(layout, collective):
    direct, *others = programs_of(layout, collective)
    for rank in range(direct.size):
        assert streams_of(direct, rank)
        for program in others:
            assert streams_of(program, rank) == streams_of(direct, rank)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_rings_and_slots_hold_the_chunks(layout, collective):
    programs = programs_of(layout, collective)
    pieces = min(pieces_of(program, BLOCKS) for program in programs)
    chunk = most_chunk(programs, pieces, rings_bytes=RINGS, scratch_bytes=SCRATCH)
    assert chunk >= 8 << 10
    assert chunk % 256 == 0
    for program in programs:
        assert num_streams(program) * pieces * RING_DEPTH * chunk <= RINGS
        assert program.slots * program.slot_depth * pieces * chunk <= SCRATCH


def test_a_capture_over_hosts_is_refused():
    with pytest.raises(NotSupportedError, match="captured in a CUDA graph: messages between hosts"):
        DeviceHosts.refuse_capture()
