"""What each rank does in test_groups.py; every function returns a JSON value."""

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

import numpy as np

import blinkrun
from blinkrun import runtime
from blinkrun.comm import mpi
from blinkrun.errors import AbortedError, CollectiveTimeoutError, PeerLeftError, UsageError
from blinkrun.messages import Recv, Send


def members(rank, size):
    """Every subset of the ranks that `rank` belongs to, in the same order on all ranks."""
    for count in range(1, size + 1):
        for ranks in itertools.combinations(range(size), count):
            if rank in ranks:
                yield ranks


def every_subset():
    """Sums and places in every subset; the number of wrong ones."""
    blinkrun.init()
    rank, size = blinkrun.rank(), blinkrun.size()
    wrong = 0
    groups = []
    for ranks in members(rank, size):
        group = runtime.subgroup(ranks)
        groups.append((ranks, group))
        wrong += (group.rank, group.size) != (ranks.index(rank), len(ranks))
        wrong += (group.plan == blinkrun.world().plan) != (len(ranks) == size)
    for count in (0, 1, 7, 4099, 100_003):
        for ranks, group in groups:  # all of them live at once
            total = group.allreduce(np.full(count, rank, np.int64))
            wrong += int((total != sum(ranks)).sum())
            root = group.broadcast(np.full(count, rank), root=len(ranks) - 1)
            wrong += int((root != ranks[-1]).sum())
            wrong += group.allgather(np.array([rank])).tolist() != list(ranks)
        wrong += int(blinkrun.allreduce(np.array([1]))[0] != size)
    wrong += groups[-1][1].allgather_object(rank) != list(range(size))
    return wrong


def given_order():
    """A group whose ranks count from the last: roots and slices follow that order."""
    blinkrun.init()
    ranks = list(range(blinkrun.size()))[::-1]
    group = runtime.subgroup(ranks)
    gathered = group.allgather(np.array([blinkrun.rank()])).tolist()
    return [group.rank, gathered, int(group.broadcast(np.array([blinkrun.rank()]), root=0)[0])]


def refused():
    """What is said of ranks that make no group; nobody else has to take part."""
    blinkrun.init()
    said = []
    for ranks in ([], [0, 0], [0, 99], [blinkrun.rank() ^ 1]):
        try:
            runtime.subgroup(ranks)
        except UsageError as err:
            said.append(str(err))
    return said


def late_member():
    """The errors of ranks that wait for one that makes no group; the world goes on."""
    blinkrun.init(timeout_s=0.5)
    said = None
    if blinkrun.rank() != 2:
        try:
            runtime.subgroup([1, 0, 2])
        except CollectiveTimeoutError as err:
            said = [str(err), list(err.ranks)]
    runtime.world().executor.group.set_timeout(20)
    return [said, float(blinkrun.allreduce(np.ones(1))[0])]


def first_comes_when_others_have_gone():
    """What a late first of a group is told, and that the group is made when all come again."""
    blinkrun.init(timeout_s=30)
    world = blinkrun.world()
    said = []
    for comes in (1, 0, 1, 0):
        if world.rank == comes:
            world.executor.timeout_s = 0.2
            try:
                runtime.subgroup([0, 1])
            except CollectiveTimeoutError as err:
                said.append([str(err), list(err.ranks)])
            world.executor.timeout_s = 30
        blinkrun.barrier()
    return [said, float(runtime.subgroup([0, 1]).allreduce(np.ones(1))[0])]


def names_in_messages():
    """A group's error names world ranks."""
    blinkrun.init(timeout_s=0.5)
    group = None if blinkrun.rank() == 1 else runtime.subgroup([2, 0])
    said = None
    if blinkrun.rank() == 0:
        try:
            group.allreduce(np.ones(10))
        except CollectiveTimeoutError as err:
            said = [str(err), list(err.ranks)]
    runtime.world().executor.group.set_timeout(20)
    return [said, float(blinkrun.allreduce(np.ones(1))[0])]


def around(group, array):
    """What the rank before sent; every rank sends to the next and receives."""
    got = np.empty_like(array)
    if group.size > 1:
        ahead, behind = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        group.exchange([Send(array, ahead), Recv(got, behind)])
    return got


def messages():
    """Rings of messages in the world and in a group of two at once, beside collectives."""
    blinkrun.init()
    world = blinkrun.world()
    rank, size = world.rank, world.size
    part = runtime.subgroup([size - 1, 0]) if rank in (0, size - 1) else None
    wrong = 0
    for count in (0, 1, 4099, 300_007):
        mine = np.full(count, rank, np.int32)
        wrong += int((around(world, mine) != (rank - 1) % size).sum())
        if part:
            wrong += int((around(part, mine) != size - 1 - rank).sum())
        wrong += int((world.allreduce(mine) != size * (size - 1) // 2).sum())
    return wrong


def interrupted_recv():
    """What Ctrl-C in a rank that waits for a message does to it and to the others."""
    blinkrun.init()
    world = blinkrun.world()
    world.barrier()
    if world.rank == 0:
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        started = time.monotonic()
        try:
            world.recv(np.ones(10), 1)
        except KeyboardInterrupt:
            return ["interrupted", time.monotonic() - started < 5]
        return ["no error", False]
    return first_error_of(lambda: world.recv(np.ones(10), 0, 1))[:2]


def resources():
    """How many files are open, watchers of processes apart, and how much is mapped."""
    maps = Path("/proc/self/maps").read_text(encoding="ascii").count("blinkrun-")
    targets = []
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            targets.append(os.readlink(f"/proc/self/fd/{each}"))
    watchers = sum("pidfd" in each for each in targets)
    return [len(targets) - watchers, maps, watchers]


def comes_and_goes(rounds):
    """Files and mappings after each of several lives of the world, with groups; sums as well."""
    seen = []
    for _ in range(rounds):
        blinkrun.init()
        rank, size = blinkrun.rank(), blinkrun.size()
        group = runtime.subgroup(range(size))
        part = runtime.subgroup([0, size - 1]) if rank in (0, size - 1) and size > 1 else None
        for _ in range(5):
            short = runtime.subgroup(range(size))
            short.allreduce(np.ones(10))
            around(short, np.full(100_000, rank))  # more than a pipe's ring holds
            short.barrier()
            short.close()
        sums = [float(each.allreduce(np.ones(7))[3]) for each in (group, part) if each]
        assert sums == [size, 2][: len(sums)]
        blinkrun.barrier()
        blinkrun.shutdown()
        assert group.is_closed
        seen.append(resources())
    return seen


def part_of_the_job():
    """A world of some of the ranks that MPI started, then of other ranks, then of all."""
    sizes = []
    everyone = mpi.MPI.COMM_WORLD
    me = everyone.Get_rank()
    ranks = [0, 2] if me != 1 else [1]
    assert mpi.ranks_of(ranks) == ranks
    runtime.init(control=mpi.control_of(ranks))
    sizes.append([blinkrun.rank(), float(blinkrun.allreduce(np.array([me]))[0])])
    blinkrun.barrier()
    blinkrun.shutdown()
    part = everyone.Split(color=me == 0, key=-me)
    runtime.init(control=mpi.control_of(part))
    sizes.append([mpi.ranks_of(part), float(blinkrun.allreduce(np.array([me]))[0])])
    blinkrun.barrier()
    blinkrun.shutdown()
    runtime.init()
    sizes.append([blinkrun.rank(), float(blinkrun.allreduce(np.array([me]))[0])])
    try:
        mpi.control_of(me)
    except UsageError as err:
        sizes.append(str(err))
    return sizes


def first_error_of(call):
    started = time.monotonic()
    try:
        call()
    except (AbortedError, PeerLeftError) as err:
        return [type(err).__name__, str(err), err.rank, time.monotonic() - started < 10]
    return "no error"


def a_member_leaves():
    """What the ranks of a group see when one of them shuts down; rank 1 is not in the group."""
    blinkrun.init(timeout_s=20)
    rank = blinkrun.rank()
    group = None if rank == 1 else runtime.subgroup([0, 2])
    blinkrun.barrier()
    if rank == 2:
        runtime.shutdown()
    if rank != 0:
        return None
    return first_error_of(lambda: group.allreduce(np.ones(10)))


def posting_before_entering():
    """Rank 0 waits in a group for rank 1, which first posts more than the world's journal holds."""
    blinkrun.init(timeout_s=8)
    world = blinkrun.world()
    group = runtime.subgroup((0, 1))
    if world.rank == 1:
        for _ in range(5):
            world.journal.post(b"x" * 400_000)
    group.barrier()
    read = 0
    while read < 2_000_000 and world.journal.wait(8.0, may_spin=False):  # it may be on its way
        read += sum(len(message) for _, message in world.journal.read())
    world.barrier()
    return read


def come_and_go(rounds):
    """Wrong sums in groups that live for a call only, one after the other."""
    blinkrun.init(timeout_s=30)
    rank, size = blinkrun.rank(), blinkrun.size()
    wrong = 0
    for ranks in [*members(rank, size)] * rounds:
        group = runtime.subgroup(ranks)
        total = group.allreduce(np.full(50_000, rank, np.float32))
        wrong += int((total != sum(ranks)).sum())
        group.close()
    return wrong
