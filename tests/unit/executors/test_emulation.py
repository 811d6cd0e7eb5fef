"""What an emulation is made of, and programs that do not fit its machine."""

import numpy as np
import pytest
from support.paced import chain_of, hub_of, mesh_of, wires
from support.programs import chain, chain_plan, packing, star, star_plan
from support.threads import run_threads

from blinkrun.errors import InvalidBufferError, ProgramError, UsageError
from blinkrun.executors import native
from blinkrun.executors.emulation import Emulation
from blinkrun.schedule.choice import Choice, Choices
from blinkrun.schedule.encode import encode
from blinkrun.schedule.ir import Addressing
from blinkrun.schedule.lower import lower, lower_packing
from blinkrun.schedule.routes import Routes
from blinkrun.topology.catalog import machine
from blinkrun.types import Collective


def test_rates_and_links_are_the_machines():
    emulation = Emulation(hub_of(3, mb_per_s=30), scale=7)
    names = [resource.name for resource in emulation.topology.resources]
    assert names == ["in 1", "in 2", "out"]
    assert emulation.bytes_per_s == (30_000_000 // 7,) * 3
    ends = [(link.src, link.dst) for link in emulation.topology.links]
    assert dict(zip(ends, emulation.links, strict=True)) == {
        (0, 1): (2,),
        (0, 2): (2,),
        (1, 0): (0,),
        (2, 0): (1,),
    }


def test_one_link_either_way_lets_two_ranks_reach_each_other():
    emulation = Emulation(wires(3, [(0, 1)]), scale=1)
    reached = {(a, b) for a in range(3) for b in range(3) if emulation.reaches(a, b)}
    assert reached == {(0, 0), (1, 1), (2, 2), (0, 1), (1, 0)}


@pytest.mark.parametrize("scale", [0, -1, 1.5, True])
def test_a_scale_that_is_none(scale):
    with pytest.raises(UsageError, match=f"scale is {scale}, need a whole number of at least 1"):
        Emulation(mesh_of(2), scale)


def test_a_scale_so_large_that_nothing_moves():
    Emulation(mesh_of(2, mb_per_s=20), 20_000)
    with pytest.raises(
        UsageError, match="carries 999 bytes/s, need 1000; the largest scale is 20000"
    ):
        Emulation(mesh_of(2, mb_per_s=20), 20_001)


def test_a_machine_that_counts_lanes():
    with pytest.raises(UsageError, match="dgx-1v counts lane, and an emulation needs MB/s"):
        Emulation(machine("dgx-1v"), 10)


def test_a_machine_of_another_size():
    with pytest.raises(UsageError, match="wires has 3 ranks, the job has 2"):
        run_threads(star_plan(2), lambda comm: None, emulation=Emulation(mesh_of(3), 1))


def test_a_program_over_links_that_are_not_there_is_refused_on_every_rank():
    """Also on rank 0, which needs no such link: otherwise it would wait for the others."""

    def body(comm):
        x = comm.empty(8)
        with pytest.raises(ProgramError, match="no link from rank 0 to rank 2"):
            comm.allreduce(x)
        with pytest.raises(ProgramError, match="no link from rank 0 to rank 2"):
            comm.executor.load_program(lower(star_plan(3), Collective.BROADCAST))
        comm.barrier()
        return True

    emulation = Emulation(chain_of(3), 1)
    assert run_threads(star_plan(3), body, emulation=emulation) == [True] * 3


def test_memory_of_an_unlinked_rank_is_out_of_reach():
    """Were a program's links made up, the core would find no memory there, and name both ranks."""
    routes = Routes(mesh_of(3))
    program = lower(star_plan(3), Collective.BROADCAST)

    def body(comm):
        if comm.rank != 2:
            return None
        with pytest.raises(
            ValueError, match="rank 2 addresses memory of rank 0, but no link joins"
        ):
            comm.executor.group.load(encode(program, 2, routes))
        return True

    emulation = Emulation(chain_of(3), 1)
    assert run_threads(chain_plan(3), body, emulation=emulation) == [None, None, True]


@pytest.mark.parametrize(
    ("routes", "eager", "message"),
    [
        (None, False, "rank 1 addresses memory of rank 0 over no link of the emulated machine"),
        (Routes(hub_of(9)), False, "over no link of the emulated machine"),
        (None, True, "one-shot programs move data before ranks meet"),
    ],
)
def test_the_core_takes_no_program_that_it_cannot_pace(routes, eager, message):
    how = {"eager": True} if eager else {}
    program = lower(star_plan(2), Collective.REDUCE, root=1, **how)
    if routes is not None:  # links 8, 9, …: the machine has two
        program = lower(star_plan(9), Collective.REDUCE, root=0)

    def body(comm):
        group = comm.executor.group
        if comm.rank == 1:
            words = encode(program, 1 if routes is None else 0, routes)
            words[5] = 2  # as if for two ranks
            with pytest.raises(ValueError, match=message if routes is None else "does not exist"):
                group.load(words)
        return True

    emulation = Emulation(mesh_of(2), 1)
    assert run_threads(star_plan(2), body, emulation=emulation) == [True] * 2


def test_a_machine_that_contradicts_itself(tmp_path):
    with open(tmp_path / "control", "w+b") as file:
        file.truncate(native.control_bytes(1, 1))
        native.format_control(file.fileno(), 1, 1)
        for links, rates, message in [
            ([[0]], [0], "has no rate"),
            ([[]], [5], "has no resource"),
            ([[1]], [5], "takes resource 1 of 1"),
        ]:
            with pytest.raises(ValueError, match=message):
                join(file.fileno(), links, rates)
        with pytest.raises(RuntimeError, match="different versions"):
            join(file.fileno(), [[0]], [5, 5])


def join(control_fd, links, rates):
    with open("/dev/zero", "r+b") as zero:
        return native.Group(
            rank=0,
            names=[0],
            control_fd=control_fd,
            arena_fds=[zero.fileno()],
            arena_bytes=native.ARENA_RESERVED + 4096,
            timeout_s=1.0,
            spins=0,
            yield_s=0.0,
            chunk_bytes=4096,
            eager_bytes=0,
            links=links,
            rates=rates,
        )


def test_a_program_that_was_given_serves_buffers_where_it_says():
    program = lower(star_plan(2), Collective.ALLREDUCE, addressing=Addressing.DIRECT)

    def body(comm):
        comm.executor.load_program(program)
        x = comm.empty(8, "int32")
        x[:] = comm.rank + 1
        done = list(comm.allreduce(x))
        with pytest.raises(InvalidBufferError, match=r"of 8 int32 .* outside the arena"):
            comm.allreduce(np.ones(8, np.int32))
        return done, list(comm.allreduce(x))  # and the ranks go on

    emulation = Emulation(mesh_of(2), 1)
    assert run_threads(star_plan(2), body, emulation=emulation) == [([3] * 8, [3] * 8)] * 2


def test_another_program_takes_the_place_of_the_one_before():
    """Each takes its own time: a chain brings the last chunk on only when it has it."""
    stars = lower(star_plan(3), Collective.BROADCAST)
    chains = lower(chain_plan(3), Collective.BROADCAST)

    def body(comm):
        times_ns = []
        for program in (stars, chains, stars):
            comm.executor.load_program(program, chunk_bytes=4096)
            x = comm.empty(1024, "int64")
            x[:] = comm.rank
            comm.broadcast(x, out=x)
            assert (x == 0).all()
            times_ns.append(comm.executor.group.last_paced_ns())
        return times_ns

    results = run_threads(star_plan(3), body, emulation=Emulation(mesh_of(3, mb_per_s=4), 1))
    # 8192 bytes to each; two chains of 4096, one chunk each, in turn over 0->1 and 1->2
    assert [max(each) for each in zip(*results, strict=True)] == [2_048_000, 3_072_000, 2_048_000]


def test_choices_by_size_take_the_first_that_is_large_enough():
    """The chain takes a chunk longer than the star: the way from 1 to 2."""
    small, large = packing([star(3, 0)]), packing([chain(3, 0)])
    choices = Choices((Choice(4096, "small", small), Choice(None, "large", large, 1024)))

    def body(comm):
        times = []
        for count in (1024, 1025):
            x = comm.empty(count, "int32")
            x[:] = 5 if comm.rank == 0 else 0
            comm.broadcast(x, out=x)
            assert (x == 5).all()
            times.append(comm.executor.group.last_paced_ns())
        return times

    links = [(0, 1), (0, 2), (1, 2)]
    emulation = Emulation(wires(3, links, mb_per_s=1), 1)
    chosen = {(Collective.BROADCAST, 0): choices}
    results = run_threads(star_plan(3), body, emulation=emulation, choices=chosen)
    star_us, chain_us = (max(each) // 1000 for each in zip(*results, strict=True))
    assert star_us == 4096  # both wires at once
    assert 4100 < chain_us <= 4100 + 1024


def test_choices_serve_ranks_that_are_not_paced_too():
    program_of = Choices((Choice(None, "chain", packing([chain(3, 1)]), 128, channels_per_tree=2),))

    def body(comm):
        x = np.arange(3001) if comm.rank == 1 else np.zeros(3001, int)
        in_arena = comm.empty(3001, "int64")
        in_arena[:] = x
        return [(comm.broadcast(y, root=1) == np.arange(3001)).all() for y in (x, in_arena)]

    chosen = {(Collective.BROADCAST, 1): program_of}
    assert run_threads(star_plan(3), body, choices=chosen) == [[True, True]] * 3
    assert lower_packing(packing([chain(3, 1)]), Collective.BROADCAST, root=1).pipelined


def test_the_size_of_an_allgather_counts_the_blocks_of_all_ranks():
    """As nccl-tests counts: 3 blocks of 1024 bytes are 3072, and a byte more each is too much."""
    stars, chains = star_plan(3).allgather, chain_plan(3).allgather
    choices = Choices((Choice(3072, "stars", stars), Choice(None, "chains", chains)))

    def body(comm):
        times = []
        for count in (1024, 1025) * 5:
            x = comm.empty(count, "uint8")
            x[:] = comm.rank
            gathered = comm.allgather(x, out=comm.empty((3, count), "uint8"))
            assert [set(block) for block in gathered.tolist()] == [{0}, {1}, {2}]
            times.append(comm.executor.group.last_paced_ns() // 1000)
        return times

    emulation = Emulation(mesh_of(3, mb_per_s=1), 1)
    chosen = {(Collective.ALLGATHER, 0): choices}
    results = run_threads(star_plan(3), body, emulation=emulation, choices=chosen)
    slowest = [max(each) for each in zip(*results, strict=True)]
    # Once undisturbed: on a busy machine a rank may come too late to take its turn on a wire.
    assert min(slowest[::2]) == 1024  # each block over a wire of its own
    assert min(slowest[1::2]) == 2 * 1025  # wires to the next rank carry two blocks, others none


def test_calls_without_pace_are_timed_where_they_take_a_while():
    def body(comm):
        group = comm.executor.group
        before = group.last_ns(), group.last_paced_ns()
        comm.allreduce(np.ones(1 << 18))
        return before, group.last_ns() > 0, group.last_paced_ns()

    assert run_threads(star_plan(2), body) == [((0, 0), True, 0)] * 2
