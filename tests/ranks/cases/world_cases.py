"""What each rank does in test_world.py; every function returns a JSON value."""

import atexit
import contextlib
import os
import resource
import signal
import threading
import time

import numpy as np

import blinkrun
from blinkrun.errors import (
    AbortedError,
    CollectiveError,
    CollectiveTimeoutError,
    NotInitializedError,
    UsageError,
)

_kept = []


def places():
    try:
        blinkrun.rank()
        before = "no error"
    except NotInitializedError as err:
        before = str(err)
    blinkrun.init()
    blinkrun.init()  # harmless
    return [
        before,
        blinkrun.rank(),
        blinkrun.size(),
        blinkrun.local_rank(),
        blinkrun.local_size(),
        blinkrun.cross_rank(),
        blinkrun.cross_size(),
        blinkrun.world().plan.size,
    ]


def collectives(counts):
    """Every collective at every count, in the arena and not; the number of wrong elements."""
    blinkrun.init()
    rank, size = blinkrun.rank(), blinkrun.size()
    total = size * (size - 1) // 2
    wrong = 0
    for count in counts:
        for arena in (False, True):
            x = blinkrun.empty(count, "int64") if arena else np.empty(count, np.int64)
            x[:] = np.arange(count) + rank
            whole = np.arange(count)
            wrong += int((blinkrun.allreduce(x) != whole * size + total).sum())
            wrong += int((blinkrun.broadcast(x, root=size - 1) != whole + size - 1).sum())
            reduced = blinkrun.reduce(x, root=size // 2)
            wrong += (reduced is None) == (rank == size // 2)
            if reduced is not None:
                wrong += int((reduced != whole * size + total).sum())
            gathered = blinkrun.allgather(x)
            wrong += int((gathered.reshape(size, count) != whole + np.arange(size)[:, None]).sum())
            parts = np.repeat(np.arange(size), count) + rank
            wrong += int((blinkrun.reducescatter(parts) != rank * size + total).sum())
            swapped = blinkrun.alltoall(parts).reshape(size, count)
            wrong += int((swapped != rank + np.arange(size)[:, None]).sum())
            blinkrun.allreduce(x, out=x)
            wrong += int((x != whole * size + total).sum())
    return wrong


def arange_sum(count):
    blinkrun.init()
    return blinkrun.allreduce(np.arange(count, dtype=np.float32) * blinkrun.rank()).tolist()


def objects():
    blinkrun.init()
    world = blinkrun.world()
    return [
        world.broadcast_object({"from": blinkrun.rank()}, root=world.size - 1),
        world.allgather_object(blinkrun.rank() * 10),
    ]


def again_after_shutdown():
    atexit.register(time.sleep, 0.2)  # after MPI's end: the job fails if MPI is called then
    sums = []
    for _ in range(3):
        blinkrun.init()
        _kept.append(blinkrun.world().executor)
        sums.append(float(blinkrun.allreduce(np.ones(3))[0]))
        blinkrun.barrier()
        blinkrun.shutdown()
    assert not blinkrun.is_initialized()
    return sums


def mpi_ends_first(leaves):
    """The program ends MPI itself, before or after it has shut blinkrun down."""
    from mpi4py import MPI  # before anything of blinkrun

    blinkrun.init()
    total = float(blinkrun.allreduce(np.ones(3))[0])
    blinkrun.barrier()
    if leaves:
        blinkrun.shutdown()
    MPI.Finalize()
    if not leaves:
        try:
            blinkrun.allreduce(np.ones(3))
        except CollectiveError as err:
            return [total, str(err)]
    return [total, ""]


def threads_at_the_end():
    """Threads that are in the core, or come back from it, while the interpreter ends."""
    blinkrun.init()
    group = blinkrun.world().executor.group
    peer = 1 - blinkrun.rank()
    letter = np.zeros(10_000)

    def work(tag):
        while True:
            with contextlib.suppress(Exception):
                way = (peer, tag, letter.ctypes.data, letter.nbytes)
                group.transfer([(True, *way), (False, *way)], True)

    for tag in range(6):
        threading.Thread(target=work, args=(tag,), daemon=True).start()
    blinkrun.barrier()


def waits_without_burning(seconds):
    """CPU seconds that the ranks which wait use while rank 0 is late."""
    blinkrun.init()
    x = np.ones(1000)
    blinkrun.allreduce(x)
    before = resource.getrusage(resource.RUSAGE_SELF)
    if blinkrun.rank() == 0:
        time.sleep(seconds)
    blinkrun.allreduce(x)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def late_rank(deadline_s):
    """The error of the ranks that wait for rank 1."""
    blinkrun.init(timeout_s=deadline_s)
    if blinkrun.rank() == 1:
        while not blinkrun.world().executor.group.aborted():
            time.sleep(0.01)
        return None
    started = time.monotonic()
    try:
        blinkrun.allreduce(np.ones(10))
    except CollectiveTimeoutError as err:
        return [str(err), list(err.ranks), time.monotonic() - started]
    return "no error"


def shared_maps():
    """Where the arena lies: never in a file that the size of /dev/shm limits."""
    blinkrun.init()
    with open("/proc/self/maps", encoding="ascii") as maps:
        ours = {line.split()[-2] for line in maps if "blinkrun-" in line}
    x = blinkrun.empty(1 << 20, "float32")
    x[:] = 1
    return [sorted(ours), float(blinkrun.allreduce(x, out=x)[-1])]


def forked_child():
    """A child of a rank may not call collectives, and its end does not end the rank."""
    blinkrun.init()
    blinkrun.allreduce_async(np.ones(3)).wait()  # there is a helper thread that stays here
    pid = os.fork()
    if pid == 0:
        said = ""
        try:
            blinkrun.allreduce(np.ones(3))
        except RuntimeError as err:
            said = str(err)
        world = blinkrun.world()
        world.executor.group.abort("by a child")
        blinkrun.shutdown()
        world.close()
        os._exit(7 if "forked" in said else 8)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return [code, float(blinkrun.allreduce(np.ones(3))[0])]


def bad_timeout():
    try:
        blinkrun.init(timeout_s=0)
    except UsageError as err:
        return str(err)
    return "no error"


def interrupted(how):
    """What Ctrl-C in a rank that waits does to it and to the others."""
    blinkrun.init()
    blinkrun.barrier()
    if blinkrun.rank() == 0:
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        started = time.monotonic()
        try:
            if how == "async":
                blinkrun.allreduce_async(np.ones(10)).wait()
            else:
                blinkrun.allreduce(np.ones(10))
        except KeyboardInterrupt:
            if how == "async":  # the call is still under way; who catches this ends the job
                blinkrun.world().executor.group.abort("rank 0 was interrupted by hand")
            return ["interrupted", time.monotonic() - started < 5]
        return ["no error", False]
    while not blinkrun.world().executor.group.aborted():
        time.sleep(0.01)
    try:
        blinkrun.allreduce(np.ones(10))
    except AbortedError as err:
        return [str(err), err.rank == 0]
    return ["no error", False]
