"""Calls on an emulated machine: right results, at the pace of its links, asleep in between."""

import time

import numpy as np
import pytest
from support.paced import MB, both_ways, chain_of, hub_of, mesh_of, wires
from support.programs import chain, chain_plan, packing, star, star_plan
from support.threads import run_threads

from blinkrun.errors import PeerLeftError
from blinkrun.executors.emulation import Emulation
from blinkrun.schedule.lower import lower, lower_packing
from blinkrun.types import Collective, Op

NS = 1_000_000_000


def broadcasts(topology, program, *, num_bytes, chunk_bytes=0, scale=1):
    """Return (paced, real) nanoseconds of three broadcasts: of the slowest rank."""

    def body(comm):
        comm.executor.load_program(program, chunk_bytes=chunk_bytes)
        x = comm.empty(num_bytes, "uint8")
        times = []
        for call in range(3):
            x[:] = call + 3 if comm.rank == program.root else 0
            comm.broadcast(x, program.root, out=x)
            group = comm.executor.group
            times.append((group.last_paced_ns(), group.last_ns()))
            assert times[-1][0] <= times[-1][1]  # nothing is done before it is due
            comm.barrier()  # or the checks of one rank take the interpreter from the others
            assert (x == call + 3).all()
            comm.barrier()
        return times

    results = run_threads(star_plan(topology.size), body, emulation=Emulation(topology, scale))
    by_call = list(zip(*results, strict=True))
    return [max(p for p, _ in each) for each in by_call], [
        max(r for _, r in each) for each in by_call
    ]


def check_pace(expected_ns, topology, program, *, slack=0.05, **how):
    """The machine's own time is right in each call; the real one, which others' work delays, once.

    No call ends before its bytes would have been there.
    """
    for _ in range(12):
        paced, real = broadcasts(topology, program, **how)
        for each in paced:
            assert expected_ns <= each <= expected_ns * (1 + slack), (paced, expected_ns)
        if min(real) <= expected_ns * 1.05:
            return
    pytest.fail(f"{real} ns, expected {expected_ns}")


@pytest.mark.parametrize("chunk_bytes", [4096, 100_000])
def test_two_ranks_keep_the_pace_of_their_link(chunk_bytes):
    """50 ms at 20 MB/s, in the same time whatever the chunks: the scale divides the rate."""
    program = lower_packing(packing([chain(2, 0)]), Collective.BROADCAST)
    fast = wires(2, [(0, 1)], mb_per_s=2000)
    how = {"num_bytes": MB, "chunk_bytes": chunk_bytes, "scale": 100}
    check_pace(MB * NS // (20 * MB), fast, program, slack=0.001, **how)


def test_eight_ranks_in_a_row_keep_the_pace_of_their_links():
    """Every link carries all of it, a chunk behind the one before: 50 ms and six chunks."""
    program = lower(chain_plan(8), Collective.BROADCAST)
    chunk = 8192
    last_arrives = (MB + 6 * chunk) * NS // (20 * MB)
    check_pace(last_arrives, chain_of(8), program, num_bytes=MB, chunk_bytes=chunk)


def test_a_shared_resource_is_shared():
    """Three ranks take their time from one resource; with a wire for each they need a third."""
    program = lower_packing(packing([star(4, 0)]), Collective.BROADCAST)
    check_pace(50_000_000, hub_of(4, mb_per_s=60), program, slack=0.01, num_bytes=MB)
    check_pace(50_000_000, mesh_of(4, mb_per_s=20), program, slack=0.01, num_bytes=MB)


def test_flows_over_one_resource_take_turns():
    """None of three has to wait until the others are through."""
    program = lower_packing(packing([star(4, 0)]), Collective.BROADCAST)

    def body(comm):
        comm.executor.load_program(program)
        x = comm.empty(MB // 4, "uint8")
        comm.broadcast(x, out=x)
        return comm.executor.group.last_paced_ns()

    times = run_threads(star_plan(4), body, emulation=Emulation(hub_of(4, mb_per_s=15), 1))
    slowest = 3 * MB // 4 * NS // (15 * MB)
    assert max(times) == pytest.approx(slowest, rel=0.01)
    assert min(times[1:]) > 0.5 * slowest  # one after the other it would be a third


def test_the_slowest_resource_of_a_path_sets_the_pace():
    topology = hub_of(3, mb_per_s=40)
    slow = type(topology)(
        topology.name,
        topology.devices,
        tuple(
            type(link)(link.src, link.dst, (*link.resources, "bridge"), link.kind)
            for link in topology.links
        ),
        (*topology.resources, type(topology.resources[0])("bridge", 10)),
        topology.unit,
    )
    program = lower_packing(packing([star(3, 0)]), Collective.BROADCAST)
    check_pace(2 * (MB // 4) * NS // (10 * MB), slow, program, slack=0.01, num_bytes=MB // 4)


@pytest.mark.parametrize("plan", [star_plan, chain_plan])
@pytest.mark.parametrize("count", [0, 1, 4099])
@pytest.mark.parametrize("place", ["arena", "user"])
def test_results_are_the_same_as_without_pace(plan, count, place):
    """Every collective on three ranks, integers bit for bit."""

    def body(comm):
        random = np.random.default_rng(count + comm.rank)
        x = random.integers(-99, 99, count * 3)
        mine = comm.empty(x.shape, "int64") if place == "arena" else np.empty_like(x)
        mine[:] = x
        return [
            comm.allreduce(mine),
            comm.broadcast(mine, 1),
            comm.reduce(mine, 2, Op.MAX),
            comm.allgather(mine),
            comm.reducescatter(mine),
            comm.alltoall(mine),
        ]

    machine = Emulation(mesh_of(3, mb_per_s=400), 1)
    paced = run_threads(plan(3), body, emulation=machine, chunk_bytes=1024)
    free = run_threads(plan(3), body, chunk_bytes=1024)
    for ours, theirs in zip(paced, free, strict=True):
        assert [np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)] == [True] * 6


def test_the_first_rank_says_the_chunk_for_all():
    """A chain of three is late by one chunk; the others' wishes are not heard."""
    program = lower_packing(packing([chain(3, 0)]), Collective.BROADCAST)
    size = 64 << 10

    def body(comm):
        comm.executor.load_program(program, chunk_bytes=32 << 10)
        x = comm.empty(size, "uint8")
        times = []
        for wanted in (0, 16 << 10, 8200, 0):  # 8200: whole cache lines are 8192
            comm.executor.group.set_chunk_bytes(wanted if comm.rank == 0 else 1 << 10)
            comm.broadcast(x, out=x)
            times.append(comm.executor.group.last_paced_ns() // 1000)
            comm.barrier()
        return times

    emulation = Emulation(chain_of(3, mb_per_s=8), 1)
    results = run_threads(star_plan(3), body, emulation=emulation)
    expected = [(size + chunk) // 8 for chunk in (32 << 10, 16 << 10, 8192, 32 << 10)]
    for got, want in zip([max(each) for each in zip(*results, strict=True)], expected, strict=True):
        assert want <= got <= want * 1.01 + 1


def test_a_chunk_fits_the_slots_whatever_is_asked_for():
    """A reduce over a chain keeps partial sums in slots, of which there are 32 MiB."""
    program = lower_packing(packing([chain(3, 0)]), Collective.REDUCE)
    assert program.slots

    def body(comm):
        comm.executor.load_program(program)
        comm.executor.group.set_chunk_bytes(1 << 60)
        x = comm.empty(1000, "int32")
        x[:] = 2
        total = comm.reduce(x)
        return None if total is None else int(total.sum())

    emulation = Emulation(mesh_of(3, mb_per_s=400), 1)
    assert run_threads(star_plan(3), body, emulation=emulation) == [6000, None, None]


def test_a_paced_rank_sleeps():
    """A tenth of a second at 5 MB/s costs a small part of it in work: nobody spins."""
    program = lower_packing(packing([chain(2, 0)]), Collective.BROADCAST)

    def body(comm):
        comm.executor.load_program(program, chunk_bytes=8192)
        x = comm.empty(MB // 2, "uint8")
        x[:] = 1
        comm.barrier()
        before = time.thread_time_ns()
        comm.broadcast(x, out=x)
        return (time.thread_time_ns() - before) / comm.executor.group.last_ns()

    emulation = Emulation(wires(2, [(0, 1)], mb_per_s=5), 1)
    assert max(run_threads(star_plan(2), body, emulation=emulation)) < 0.2


def test_a_rank_that_leaves_ends_the_paced_calls_of_the_others():
    """Rank 1 is the middle of a chain, and gone: rank 2 waits for it, and then so does rank 0."""
    program = lower_packing(packing([chain(3, 0)]), Collective.BROADCAST)

    def body(comm):
        comm.executor.load_program(program)
        comm.barrier()
        if comm.rank == 1:
            return comm.executor.group.leave()
        x = comm.empty(1000, "uint8")
        with pytest.raises(PeerLeftError, match=r"rank 1 has left the job while rank [02] waits"):
            comm.broadcast(x, out=x)
        return None

    topology = wires(3, both_ways([(0, 1), (1, 2)]), mb_per_s=1)
    run_threads(star_plan(3), body, emulation=Emulation(topology, 1))


def test_one_rank_alone_has_nothing_to_wait_for():
    def body(comm):
        x = comm.empty(1000, "int32")
        x[:] = 4
        return int(comm.allreduce(x).sum())

    assert run_threads(star_plan(1), body, emulation=Emulation(wires(1, []), 1)) == [4000]
