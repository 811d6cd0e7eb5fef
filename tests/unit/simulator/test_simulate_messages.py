"""Messages between hosts on the virtual clock: rendezvous, order, cost; jobs of several hosts."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from support.cpu_hosts import plan_of_sizes

from blinkrun.errors import ProgramError, SimulationError
from blinkrun.schedule.ir import (
    Addressing,
    Arrived,
    Buffer,
    Channel,
    Operand,
    Part,
    Program,
    RankProgram,
    Recv,
    Reduce,
    Send,
    Sent,
    Signal,
    Wait,
)
from blinkrun.schedule.lower_hosts import lower_alltoall_hosts, lower_hosts
from blinkrun.simulator.conserve import check_account
from blinkrun.simulator.cost import FREE, OURS, SHARED_MEMORY
from blinkrun.simulator.engine import Engine, simulate
from blinkrun.simulator.explain import critical_text
from blinkrun.simulator.load import load
from blinkrun.simulator.trace import chrome_trace
from blinkrun.topology.between import Network
from blinkrun.topology.graph import LinkKind, Resource, Topology
from blinkrun.topology.hosts import join_hosts
from blinkrun.types import Collective

MB = 10**6
ALL = Part(0, 1)
IN, OUT = Buffer.INPUT, Buffer.OUTPUT
ALONE = Topology("alone", (0,), (), (Resource("core", 10_000),), "MB/s")
PAIR = join_hosts([ALONE, ALONE], networks=[Network(1000)] * 2)  # 1 MB a ms


def broadcast(*channels, hosts=(0, 1)):
    """A program of two ranks on two hosts: channels are (rank, steps)."""
    ranks = tuple(
        RankProgram(channels=tuple(Channel(ALL, tuple(own)) for at, own in channels if at == rank))
        for rank in range(2)
    )
    return Program(
        Collective.BROADCAST, 0, Addressing.DIRECT, 1, ranks, pipelined=True, hosts=hosts
    )


SEND = (0, [Send(Operand(0, IN), 1)])
RECV = (1, [Recv(Operand(1, OUT), 0), Arrived(0)])


def test_a_message_takes_its_cost_its_bytes_and_a_latency():
    cost = replace(FREE, message_ns=500).with_latencies({LinkKind.NETWORK: 70})
    run = simulate(broadcast(SEND, RECV), PAIR, size_bytes=MB, cost=cost, trace=True)
    assert run.time_ns == 500 + 1_000_000 + 70
    assert [(part.what, part.end_ns - part.start_ns) for part in run.critical] == [
        ("step", 500),
        ("transfer", 1_000_000),
        ("latency", 70),
    ]
    (transfer,) = run.transfers
    assert (transfer.src, transfer.dst, transfer.size_bytes) == (0, 1, MB)


def test_messages_of_a_stream_follow_each_other_and_their_costs_overlap():
    """Four chunks: the next message is made ready while one is on its way."""
    cost = replace(FREE, message_ns=500).with_latencies({LinkKind.NETWORK: 70})
    program = broadcast(SEND, (1, RECV[1][:1]), (1, RECV[1][1:]))
    run = simulate(program, PAIR, size_bytes=MB, chunk_bytes=MB // 4, cost=cost)
    assert run.time_ns == 500 + 1_000_000 + 70
    busy = {usage.name: usage.busy_ns for usage in run.usage}
    assert busy["host 0 network out"] == busy["host 1 network in"] == 1_000_000
    assert busy["host 1 network out"] == busy["host 0 network in"] == 0


def test_a_message_waits_until_it_is_asked_for():
    """Rank 1 asks for it after a copy of its own that takes twice as long as the message."""
    late = (1, [Reduce((Operand(1, OUT),), (Operand(1, IN),)), *RECV[1]])
    cost = replace(FREE, memory_mb_per_s=1000)
    run = simulate(broadcast(SEND, late), PAIR, size_bytes=MB, cost=cost, trace=True)
    assert run.time_ns == 3_000_000
    assert [part.what for part in run.critical] == ["memory", "transfer"]


def test_who_sends_is_held_until_messages_are_through():
    """With `Sent` after each send nothing overlaps: every chunk pays cost and latency."""
    cost = replace(FREE, message_ns=500).with_latencies({LinkKind.NETWORK: 70})
    held = (0, [*SEND[1], Sent(1)])
    ahead = (1, RECV[1][:1])
    run = simulate(broadcast(held, ahead), PAIR, size_bytes=MB, chunk_bytes=MB // 4, cost=cost)
    assert run.time_ns == 1_000_000 + 4 * 570


def test_two_streams_share_the_network_evenly():
    """Alltoall of two ranks: each way has its own resources; of two hosts of two, pairs share."""
    plan = plan_of_sizes((2, 2), 1000)
    program = lower_alltoall_hosts(plan.hosts_of, Addressing.DIRECT)
    run = simulate(program, plan.joined, size_bytes=4 * MB, cost=FREE)
    assert run.time_ns == 4_000_000  # four blocks of 1 MB leave each host, and as many enter it
    assert all(usage.size_bytes == 4 * MB for usage in run.usage if "network" in usage.name)


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        ([RECV], "waits for ever for message 0 of stream 0 from rank 0 to rank 1; 0 were sent"),
        ([SEND], "message 0 of stream 0 from rank 0 to rank 1; 1 were sent, 0 asked for"),
        (
            [(0, [Wait(0, 0), *SEND[1], Signal(0)]), RECV],
            "rank 0, channel 0, step 0, chunk 0 waits for ever for flag 0",
        ),
    ],
)
def test_a_message_that_nobody_sends_or_takes_is_said(channels, message):
    with pytest.raises(ProgramError, match=message):
        simulate(broadcast(*channels), PAIR, size_bytes=MB)


def test_lost_messages_are_noticed():
    program = broadcast(SEND, RECV)
    loaded = load(program, PAIR, size_bytes=MB, itemsize=4, chunk_bytes=0, cost=FREE)
    engine = Engine(loaded)
    engine.run()
    with pytest.raises(SimulationError, match="0 of 1 messages were through"):
        check_account(loaded, replace(engine.account(), delivered=[0]))


def test_slow_networks_take_as_long_as_they_must():
    slow = join_hosts([ALONE, ALONE], networks=[Network(Fraction(5, 4))] * 2)
    run = simulate(broadcast(SEND, RECV), slow, size_bytes=MB, cost=FREE)
    assert run.time_ns == 800_000_000
    usage = {each.name: each.capacity_mb_per_s for each in run.usage}
    assert usage["host 0 network out"] == Fraction(5, 4)
    assert usage["host 0 core"] == 10_000


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (4, 4), (1, 3), (3, 5), (2, 2, 4)])
@pytest.mark.parametrize("collective", [Collective.ALLREDUCE, Collective.BROADCAST])
def test_a_job_on_hosts_at_1_gbit_takes_what_its_network_does(sizes, collective):
    """The measured floor of 16 MiB over two hosts, 140 ms, is that of frames of 1514 bytes."""
    plan = plan_of_sizes(sizes, Fraction(125 * 1448, 1514), cores=2)
    packing = plan.packing(collective)
    program = lower_hosts(packing, collective, plan.hosts_of)
    size_bytes = 16 << 20
    chunk = next(chunk for most, chunk in plan.chunks(collective) if not most or size_bytes <= most)
    run = simulate(
        program, plan.joined, size_bytes=size_bytes, chunk_bytes=chunk, cost=SHARED_MEMORY
    )
    bound_ns = size_bytes * 1000 / packing.bound
    assert bound_ns <= run.time_ns <= bound_ns * Fraction(105, 100)
    if collective is Collective.ALLREDUCE and len(sizes) == 2:
        assert 140 * MB <= run.time_ns <= 144 * MB


def test_a_run_over_hosts_is_explained_and_drawn():
    plan = plan_of_sizes((2, 2), 125)
    program = lower_hosts(plan.packing(Collective.ALLREDUCE), Collective.ALLREDUCE, plan.hosts_of)
    how = {"size_bytes": 4 << 20, "chunk_bytes": 128 << 10, "cost": OURS}
    run = simulate(program, plan.joined, trace=True, **how)
    assert run.time_ns == simulate(program, plan.joined, **how).time_ns
    ends = [part.end_ns for part in run.critical]
    starts = [part.start_ns for part in run.critical]
    assert starts == [0, *ends[:-1]]
    assert ends[-1] == run.time_ns
    text = critical_text(run, plan.joined, program)
    assert text[0].startswith("last is the depth 2 tree over ")
    assert text[2].startswith("most of it on link ")
    assert "(network)" in text[2]
    events = chrome_trace(run, plan.joined)["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    by_track = {}
    for event in slices:
        by_track.setdefault((event["pid"], event["tid"]), []).append(event)
    for track in by_track.values():
        for one, other in pairwise(track):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-6
