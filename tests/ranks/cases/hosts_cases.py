"""What each rank does in test_hosts_collectives.py; every function returns a JSON value."""

import os
import resource
import threading
import time
from pathlib import Path

import numpy as np

import blinkrun
from blinkrun import nccl, runtime
from blinkrun.comm import mpi
from blinkrun.errors import BlinkrunError, CollectiveTimeoutError, PeerLeftError
from blinkrun.executors.emulation import Emulation
from blinkrun.nccl import unique_id
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce

COUNTS = (0, 1, 7, 509, 4099, 100_003)
DTYPES = ("float32", "int64", "float16", "uint8", "float64", "int8", "int32")


def places():
    blinkrun.init()
    world = blinkrun.world()
    where = [world.rank, world.local_rank, world.local_size, world.cross_rank, world.cross_size]
    said = world.describe().splitlines()[0]
    objects = [
        world.broadcast_object({"from": world.rank}, root=world.size - 1),
        world.allgather_object(world.rank * 10),
    ]
    sums = []
    for _ in range(3):
        sums.append(float(blinkrun.allreduce(np.ones(3000))[0]))
        blinkrun.barrier()
        blinkrun.shutdown()
        blinkrun.init()
    return [*where, list(world.host_of), said, objects, sums]


def every_collective():
    """Types, counts and roots, in the arena, beside it, and mixed between hosts."""
    blinkrun.init()
    world = blinkrun.world()
    wrong = []
    for number, count in enumerate(COUNTS):
        for dtype in (DTYPES[number], DTYPES[number - 1]):
            for arena in ("all", "none", "some"):
                wrong += _wrong(world, count, np.dtype(dtype), arena)
    return wrong


def _wrong(world, count, dtype, arena):
    """Return what came out wrong for arrays that lie in the arena on all, no or some ranks."""
    rank, size = world.rank, world.size
    in_arena = arena == "all" or (arena == "some" and world.cross_rank % 2 == 0)
    found = []

    def check(what, got, expected):
        if got.dtype != dtype or not np.array_equal(got.reshape(-1), expected.reshape(-1)):
            found.append(f"{what} of {count} {dtype}, {arena} in the arena")

    def array(values):
        made = world.empty(values.size, dtype) if in_arena else np.empty(values.size, dtype)
        made[:] = values
        return made

    # Small whole numbers: every sum and product is exact in every type.
    data = np.stack([(np.arange(count * size) + 3 * r) % 4 for r in range(size)]).astype(dtype)
    mine = data[:, :count]
    x = array(mine[rank])
    check("sum", world.allreduce(x), mine.sum(0, dtype=dtype))
    check("max", world.allreduce(x, op=blinkrun.Max), mine.max(0))
    check("min", world.allreduce(x, op=blinkrun.Min), mine.min(0))
    twice = [(data[:, :count] * 0 + size).astype(dtype)[r] for r in range(size)][rank]
    check("average", world.allreduce(array(twice), op=blinkrun.Average), twice)
    root = count % size
    check("broadcast", world.broadcast(x, root=root), mine[root])
    reduced = world.reduce(x, root=root)
    if rank == root:
        check("reduce", reduced, mine.sum(0, dtype=dtype))
    check("allgather", world.allgather(x), mine)
    blocks = data.sum(0, dtype=dtype).reshape(size, count)
    check("reducescatter", world.reducescatter(array(data[rank])), blocks[rank])
    swapped = data.reshape(size, size, count)[:, rank]
    check("alltoall", world.alltoall(array(data[rank])), swapped)
    kept = x.copy()
    handle = world.allreduce_async(x, out=array(kept))
    check("async sum", handle.wait(), mine.sum(0, dtype=dtype))
    world.allreduce(x, out=x)
    check("sum in place", x, mine.sum(0, dtype=dtype))
    return found


def every_root_and_bits(count):
    """Broadcast and reduce from every rank, and sums that rounding changes, by two ways."""
    blinkrun.init()
    world = blinkrun.world()
    wrong = 0
    x = np.full(count, world.rank + 1.0, np.float32)
    for root in range(world.size):
        wrong += int((world.broadcast(x, root=root) != root + 1).sum())
        total = world.reduce(x, root=root)
        if world.rank == root:
            wrong += int((total != world.size * (world.size + 1) / 2).sum())
    x[:] = np.random.default_rng(world.rank).standard_normal(count)
    in_arena = world.empty(count)
    in_arena[:] = x
    staged, direct = world.allreduce(x), world.allreduce(in_arena)
    return [wrong, staged.tobytes() == direct.tobytes(), float(np.abs(staged).sum())]


def sets_of_many_threads(rounds):
    """Groups of one host, one per host and odd ones, each in a thread of its own; the wrong sums.

    Meanwhile the main thread makes MPI calls of the program's own.
    """
    blinkrun.init()
    world = blinkrun.world()
    host_of = world.host_of
    wanted = [
        [rank for rank in range(world.size) if host_of[rank] == host_of[world.rank]],
        sorted({host: rank for rank, host in reversed(list(enumerate(host_of)))}.values()),
        list(range(1, world.size)),
        list(range(world.size))[::-1],
    ]
    groups = [(ranks, runtime.subgroup(ranks)) for ranks in wanted if world.rank in ranks]
    wrong = []

    def work(ranks, group):
        for count in (1, 1000, 30_011) * rounds:
            total = group.allreduce(np.full(count, world.rank, np.int64))
            if (total != sum(ranks)).any() or group.size != len(ranks):
                wrong.append(f"{ranks}: {count}")

    threads = [threading.Thread(target=work, args=each) for each in groups]
    handles = [world.allreduce_async(np.full(50_021, 1.0)) for _ in range(rounds)]
    for thread in threads:
        thread.start()
    comm = mpi.MPI.COMM_WORLD  # the user's own
    for _ in range(20 * rounds):
        if comm.allreduce(comm.Get_rank()) != world.size * (world.size - 1) // 2:
            wrong.append("mpi4py")
    for thread in threads:
        thread.join()
    for handle in handles:
        if (handle.wait() != world.size).any():
            wrong.append("world")
    kinds = [type(group.executor).__name__ for _, group in groups]
    for _, group in groups:
        group.close()
    world.barrier()
    return [wrong, kinds]


def late_rank(deadline_s, late):
    """The error of the ranks that wait for a late one of another host, or of theirs."""
    blinkrun.init()
    group = blinkrun.world().executor.group
    blinkrun.allreduce(np.ones(10))
    group.set_timeout(deadline_s)  # from here: a start takes as long as it takes
    if blinkrun.rank() == late:
        while not group.aborted():
            time.sleep(0.01)
        return None
    started = time.monotonic()
    try:
        blinkrun.allreduce(np.ones(10_000))
    except CollectiveTimeoutError as err:
        return [str(err), list(err.ranks), time.monotonic() - started]
    return "no error"


def leaving_rank(leaver):
    """The error of the ranks that wait for one that has left."""
    blinkrun.init()
    blinkrun.allreduce(np.ones(10))
    if blinkrun.rank() == leaver:
        blinkrun.shutdown()
        return None
    started = time.monotonic()
    try:
        blinkrun.allreduce(np.ones(100_000))
    except PeerLeftError as err:
        return [str(err), err.rank, time.monotonic() - started]
    return "no error"


def different_calls():
    blinkrun.init()
    count = 10 if blinkrun.rank() else 11
    said = []
    for scale in (1, 1000):
        try:
            blinkrun.allreduce(np.ones(count * scale))
        except BlinkrunError as err:
            said.append(f"{type(err).__name__}: {err}")
    said.append(float(blinkrun.allreduce(np.ones(5))[0]))
    return said


def waits_without_burning(seconds):
    """CPU seconds that the ranks which wait use while rank 0 is late."""
    blinkrun.init()
    x = np.ones(1000)
    blinkrun.allreduce(x)
    blinkrun.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF)
    if blinkrun.rank() == 0:
        time.sleep(seconds)
    blinkrun.allreduce(x)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def refused(plan):
    """What is for one host only, in the words that ranks on several get."""
    from support.programs import star_plan  # slow, and only here

    said = []

    def attempt(act):
        try:
            act()
        except BlinkrunError as err:
            said.append(str(err))

    pair = induce(machine("dgx-1v", "all"), [0, 1])
    attempt(lambda: blinkrun.init(emulation=Emulation(pair, scale=1000)))
    own = Path(f"{plan}.{os.getpid()}")  # the other rank may read it while this one writes
    own.write_text(star_plan(2).to_json())
    own.rename(plan)
    os.environ["BLINKRUN_PLAN"] = plan
    attempt(blinkrun.init)
    del os.environ["BLINKRUN_PLAN"]
    os.environ["BLINKRUN_TUNE"] = "on"  # is said, and does nothing
    blinkrun.init()
    attempt(lambda: blinkrun.world().tune({}))
    made = blinkrun.world().broadcast_object(nccl.get_unique_id())
    try:
        unique_id.check_host(bytes(each % 256 for each in made))
        said.append("same host")
    except nccl.NcclError as err:
        said.append(str(err))
    return [*said, [float(each.mb_per_s) for each in blinkrun.world().plan.network]]
