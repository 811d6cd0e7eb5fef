"""Times that can be worked out on paper, to the nanosecond."""

from dataclasses import replace
from fractions import Fraction

import pytest
from support.simulated import MB, chain_program, line, machine_of, pair, pulls

from blinkrun.errors import ProgramError, UsageError
from blinkrun.schedule.ir import (
    Addressing,
    Buffer,
    Channel,
    Operand,
    Part,
    Program,
    RankProgram,
    Reduce,
    Signal,
    Wait,
)
from blinkrun.schedule.lower import lower_barrier, lower_eager
from blinkrun.simulator.cost import FREE, Cost
from blinkrun.simulator.engine import simulate
from blinkrun.topology.graph import LinkKind
from blinkrun.types import Collective

PULL = pulls(2, [(1, 0, "")])


def time_of(program, topology, size_bytes, cost=FREE, **how):
    return simulate(program, topology, size_bytes=size_bytes, cost=cost, **how).time_ns


@pytest.mark.parametrize("capacity", [1, 3, 7, 1000, 22_999, 23_000])
@pytest.mark.parametrize("size_bytes", [4, 1012, 4 * 1_000_003])
def test_one_transfer_takes_its_bytes_over_the_capacity_rounded_up(capacity, size_bytes):
    assert time_of(PULL, pair(capacity), size_bytes) == -(-size_bytes * 1000 // capacity)


def test_two_flows_share_a_wire_and_the_longer_one_has_it_alone_in_the_end():
    program = pulls(2, [(1, 0, ""), (1, 0, "")], shares=2)
    short, rest = (
        Channel(Part(0, 1), program.ranks[1].channels[0].steps),
        Channel(Part(1, 4), program.ranks[1].channels[1].steps),
    )
    program = replace(program, shares=4, ranks=(RankProgram(), RankProgram((), (short, rest))))
    run = simulate(program, pair(1000), size_bytes=4 * MB, cost=FREE, trace=True)
    assert run.time_ns == 4 * MB
    # 1 MB at half the rate, meanwhile 1 MB of the other; its other 2 MB at the full rate
    assert sorted(each.end_ns for each in run.transfers) == [2 * MB, 4 * MB]


def test_what_one_flow_cannot_use_the_other_gets():
    """0->1 crosses a narrow and a shared resource, 2->1 the shared one only."""
    topology = machine_of(
        {"narrow": 100, "port": 1000}, [(0, 1, ("narrow", "port")), (2, 1, ("port",))]
    )
    program = pulls(3, [(1, 0, ""), (1, 2, "")], shares=2)
    run = simulate(program, topology, size_bytes=1800, cost=FREE, trace=True)
    ends = {each.src: each.end_ns for each in run.transfers}
    first = 1800 // 2 // 64 * 64
    assert ends == {0: first * 10, 2: -(-(1800 - first) * 1000 // 900)}


@pytest.mark.parametrize("hops", [1, 2, 3, 5])
@pytest.mark.parametrize("chunks", [1, 2, 7, 100])
def test_a_pipelined_chain_takes_a_chunk_time_for_every_chunk_and_every_further_hop(hops, chunks):
    chunk, step_ns, latency_ns = 64_000, 300, 450
    cost = Cost("chain", step_ns=step_ns, latencies_ns=((LinkKind.NVLINK, latency_ns),))
    got = time_of(
        chain_program(hops + 1), line(hops + 1, 1000), chunks * chunk, cost, chunk_bytes=chunk
    )
    per_chunk = chunk + step_ns + latency_ns
    # a program of one hop is not cut: it has one chunk
    expected = (
        (chunks + hops - 1) * per_chunk if hops > 1 else chunks * chunk + step_ns + latency_ns
    )
    assert got == expected


def test_launch_step_and_latency_add_to_the_transfer():
    cost = Cost("costly", launch_ns=5000, step_ns=700, latencies_ns=((LinkKind.NVLINK, 30),))
    assert time_of(PULL, pair(1000), 1000, cost) == 5000 + 700 + 1000 + 30


def test_the_largest_latency_of_a_step_counts_once():
    topology = machine_of(
        {"a": 1000, "b": 1000},
        [(0, 2, ("a",), LinkKind.NVLINK), (1, 2, ("b",), LinkKind.PCIE)],
    )
    sources = (Operand(0, Buffer.INPUT), Operand(1, Buffer.INPUT))
    step = Reduce((Operand(2, Buffer.OUTPUT),), sources)
    ranks = (RankProgram(), RankProgram(), RankProgram((), (Channel(Part(0, 1), (step,)),)))
    program = Program(Collective.ALLREDUCE, 0, Addressing.DIRECT, 1, ranks)
    cost = Cost("hops", latencies_ns=((LinkKind.NVLINK, 10), (LinkKind.PCIE, 70)))
    assert time_of(program, topology, 4000, cost) == 4000 + 70


def test_efficiency_is_a_part_of_the_capacity_rounded_down():
    cost = replace(FREE, efficiency=Fraction(1, 3))
    run = simulate(PULL, pair(1000), size_bytes=1332, cost=cost)
    assert run.usage[0].capacity_mb_per_s == 333
    assert run.time_ns == 4000


def test_memory_counts_every_operand_and_is_shared_by_the_ranks_channels():
    """Four operands of rank 1 in all, two channels: 2 x 4000 bytes at 4 bytes per ns."""
    copy = Reduce((Operand(1, Buffer.OUTPUT),), (Operand(1, Buffer.INPUT),))
    channels = tuple(Channel(Part(at, at + 1), (copy,)) for at in range(2))
    program = Program(
        Collective.ALLREDUCE, 0, Addressing.DIRECT, 2, (RankProgram(), RankProgram((), channels))
    )
    cost = replace(FREE, memory_mb_per_s=4000)
    assert time_of(program, pair(), 6400, cost) == 2 * 6400 // 4
    assert time_of(program, pair(), 6400, FREE) == 0


def test_slow_memory_holds_a_transfer_back():
    cost = replace(FREE, memory_mb_per_s=100)
    assert time_of(PULL, pair(1000), 1000, cost) == 10_000


@pytest.mark.parametrize("kind", [LinkKind.PCIE, LinkKind.STAGED])
def test_peer_access_is_switched_only_for_pcie_beside_a_fabric(kind):
    cost = replace(FREE, peer_switch_ns=12_345)
    both = machine_of({"wire": 1000, "bus": 1000}, [(0, 1, ("wire",)), (0, 1, ("bus",), kind)])
    program = pulls(2, [(1, 0, kind.value)])
    late = 12_345 if kind is LinkKind.PCIE else 0
    assert time_of(program, both, 1000, cost) == 1000 + late
    assert time_of(pulls(2, [(1, 0, "nvlink")]), both, 1000, cost) == 1000
    assert time_of(PULL, pair(1000, kind), 1000, cost) == 1000  # no fabric, nothing to switch


def test_prologues_run_before_ranks_enter():
    """The eager allreduce puts INPUT into SCRATCH, enters, and reads the others'."""
    program = lower_eager(Collective.ALLREDUCE, 2)
    cost = Cost("eager", launch_ns=1000, memory_mb_per_s=1000, latencies_ns=FREE.latencies_ns)
    without = time_of(program, pair(10**6), 640, replace(cost, memory_mb_per_s=0))
    assert without == 1000 + 1
    run = simulate(program, pair(10**6), size_bytes=640, cost=cost, trace=True)
    # two operands before, two after: the other's SCRATCH is no memory of this rank
    assert [(part.what, part.start_ns, part.end_ns) for part in run.critical] == [
        ("memory", 0, 1280),
        ("launch", 1280, 2280),
        ("memory", 2280, 3560),
    ]
    assert run.time_ns == 3560


def test_zero_bytes_take_the_launch():
    cost = replace(FREE, launch_ns=777)
    run = simulate(chain_program(3), line(3), size_bytes=0, cost=cost, chunk_bytes=1, trace=True)
    assert run.time_ns == 777
    assert [(part.what, part.end_ns) for part in run.critical] == [("launch", 777)]
    assert time_of(chain_program(3), line(3), 3, cost) == 777  # less than an element


def test_a_barrier_takes_the_launch():
    assert time_of(lower_barrier(2), pair(), 0, replace(FREE, launch_ns=5)) == 5


@pytest.mark.parametrize("size_bytes", [4, 4 * 97, 64, 60, 68])
def test_data_below_a_chunk_is_one_chunk(size_bytes):
    whole = time_of(chain_program(3), line(3, 10), size_bytes)
    assert whole == time_of(chain_program(3), line(3, 10), size_bytes, chunk_bytes=1 << 20)
    assert whole == 2 * size_bytes * 100


def test_the_last_chunk_is_what_is_left():
    """Seven elements in chunks of three over two hops."""
    got = time_of(chain_program(3), line(3, 1), 28, chunk_bytes=12)
    assert got == 1000 * (12 + 12 + 12 + 4)


def test_blocks_are_the_size_over_the_ranks():
    program = lower_eager(Collective.ALLGATHER, 2)
    # each rank pulls the other's block, half of the size
    assert time_of(program, pair(1000), 8000) == 4000


def test_a_deadlock_names_the_waits():
    channels = [
        RankProgram((), (Channel(Part(0, 1), (Wait(peer, 0), Signal(0))),)) for peer in (1, 0)
    ]
    program = Program(Collective.ALLREDUCE, 0, Addressing.DIRECT, 1, tuple(channels))
    with pytest.raises(ProgramError, match=r"rank 0, channel 0, step 0, chunk 0.*flag 0 of rank 1"):
        simulate(program, pair(), size_bytes=4)


def test_what_does_not_fit_is_one_line():
    with pytest.raises(ProgramError, match="no pcie link from rank 0 to rank 1"):
        simulate(pulls(2, [(1, 0, "pcie")]), pair(), size_bytes=4)
    with pytest.raises(ProgramError, match="has 3 ranks, the program 2"):
        simulate(PULL, line(3), size_bytes=4)
    with pytest.raises(UsageError, match="counts in lane"):
        simulate(PULL, replace(pair(), unit="lane"), size_bytes=4)
    with pytest.raises(UsageError, match="cannot move -1 bytes"):
        simulate(PULL, pair(), size_bytes=-1)
    with pytest.raises(UsageError, match="less than 1"):
        simulate(PULL, pair(1), size_bytes=4, cost=replace(FREE, efficiency=Fraction(1, 2)))
