"""What each rank does in test_engine_ranks.py; every function returns a JSON value."""

import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from functools import partial

import numpy as np
from support.engines import allreduce, submit

from blinkrun import engine, runtime
from blinkrun.comm.sockets import SocketControl
from blinkrun.engine import objects
from blinkrun.engine.request import Kind
from blinkrun.errors import (
    DuplicateNameError,
    ForkedError,
    MismatchError,
    NotInitializedError,
    PeerLeftError,
)
from blinkrun.types import Op


def _step(eng, thread, step, digest):
    """Many requests in an order of this rank's own; returns how many results were wrong."""
    rank, size = eng.world.rank, eng.world.size
    jobs = []
    for number in range(12):
        name = f"{thread}.{number}"
        count = (0, 1, 7, 509, 4099, 100_003)[number % 6]
        data = np.random.default_rng(1000 * step + 10 * number + rank).random(count, np.float32)
        jobs.append((name, Kind.ALLREDUCE, [data], {"op": Op.AVERAGE}))
        jobs.append((f"{name}.gather", Kind.ALLGATHER, [np.full((rank + step, 2), rank)], {}))
        jobs.append((f"{name}.root", Kind.BROADCAST, [np.full(3, rank)], {"root": step % size}))
        rows = np.ones((size + 1, 3), np.float32) * (rank + 1)
        jobs.append((f"{name}.scatter", Kind.REDUCESCATTER, [rows], {}))
    random.Random(f"{rank} {thread} {step}").shuffle(jobs)
    handles = {
        name: submit(eng, kind, name, arrays, sync=False, **how) for name, kind, arrays, how in jobs
    }
    wrong = 0
    for name, handle in sorted(handles.items()):
        handle.wait()
        got = handle.targets[0].owner
        digest.update(got.tobytes())
        if name.endswith("gather"):
            expected = np.repeat(np.arange(size), np.arange(size) + step)
            wrong += not np.array_equal(got[:, 0], expected)
        elif name.endswith("root"):
            wrong += not np.array_equal(got, [step % size] * 3)
        elif name.endswith("scatter"):
            rows = (2 if rank == 0 else 1, 3)
            wrong += not np.array_equal(got, np.full(rows, size * (size + 1) / 2))
    return wrong


def busy_ranks(threads, steps):
    """Threads of every rank in orders of their own, twice, with a new world in between."""
    answers = []
    for _ in range(2):
        runtime.init()
        eng = engine.start()
        digests = [hashlib.sha256() for _ in range(threads)]
        wrong = [0] * threads

        def work(thread, eng=eng, digests=digests, wrong=wrong):
            for step in range(steps):
                wrong[thread] += _step(eng, thread, step, digests[thread])

        started = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
        for each in started:
            each.start()
        for each in started:
            each.join()
        same = objects.allgather_object(eng, {"rank": eng.world.rank})
        root = eng.world.size - 1
        told = objects.broadcast_object(eng, ["from", eng.world.rank], root)
        last = eng.join()
        runtime.shutdown()
        try:
            eng.barrier()
            refused = False
        except NotInitializedError:
            refused = True
        answers.append([wrong, same, told, last >= 0, refused])
        answers.append([digest.hexdigest() for digest in digests[:1]])
    return answers


def sets_and_errors():
    """Static and dynamic sets that overlap, a mismatch, a duplicate, and all goes on."""
    runtime.init()
    rank, size = runtime.world().rank, runtime.world().size
    evens, odds = list(range(0, size, 2)), list(range(1, size, 2))
    eng = engine.start([evens, odds])
    mine = 1 if rank in evens else 2
    members = evens if rank in evens else odds
    said = []
    total = allreduce(eng, "w", np.full(5, rank, np.int64), process_set=mine)
    said.append(bool((total == sum(members)).all()))
    added = eng.add_process_set(range(1, size))
    said.append([added, sorted(eng.process_sets())])
    shape = 3 if rank else 4
    try:
        allreduce(eng, "mismatch", np.ones(shape, np.float32))
    except MismatchError as err:
        said.append(str(err))
    first = submit(eng, Kind.ALLREDUCE, "twice", [np.ones(2, np.float32)])
    try:
        submit(eng, Kind.ALLREDUCE, "twice", [np.ones(2, np.float32)])
    except DuplicateNameError:
        said.append("duplicate")
    except MismatchError as err:  # cannot be
        said.append(str(err))
    first.wait()
    if rank:
        objects.broadcast_object(eng, "x", 1, added)
    said.append(eng.remove_process_set(added))
    buffer = eng.empty_bytes(4096, mine).view(np.float32)
    buffer[:] = rank
    allreduce(eng, "direct", buffer, process_set=mine, in_place=True)
    said.append(bool((buffer == sum(members)).all()))
    engine.stop()
    try:
        engine.start()
    except NotInitializedError as err:
        said.append(str(err))
    runtime.shutdown()
    return said


def waits_without_burning(seconds):
    """CPU of a rank whose request is not ready, over `seconds`: driven by the helper, and not."""
    runtime.init()
    eng = engine.start()
    allreduce(eng, "x", np.ones(3, np.float32))
    burnt = []
    for is_async in (True, False):
        if eng.world.rank == 0:
            handle = submit(eng, Kind.ALLREDUCE, "x", [np.ones(3, np.float32)], sync=not is_async)
            waits = threading.Event()
            handle.add_done_callback(lambda _, waits=waits: waits.set())
            before = time.process_time()
            if is_async:
                assert not waits.wait(seconds)
            else:
                handle.wait()
            burnt.append(time.process_time() - before)
            handle.wait()
        else:
            threading.Event().wait(seconds + 0.2)
            allreduce(eng, "x", np.ones(3, np.float32))
    eng.barrier()
    runtime.shutdown()
    return burnt


def interrupted():
    """Ctrl-C while a request waits: the wait ends, the request goes on, the engine is usable."""
    runtime.init()
    eng = engine.start()
    said = "not interrupted"
    if eng.world.rank == 0:
        handle = submit(eng, Kind.ALLREDUCE, "x", [np.ones(3, np.float32)], sync=True)
        me = os.getpid()
        threading.Timer(0.3, lambda: os.kill(me, signal.SIGINT)).start()
        try:
            handle.wait()
        except KeyboardInterrupt:
            said = "interrupted"
        submit(eng, Kind.BROADCAST, "go", [np.ones(1)], root=0)
        handle.wait()
        total = handle.targets[0].owner
    else:
        submit(eng, Kind.BROADCAST, "go", [np.ones(1)], root=0).wait()
        total = allreduce(eng, "x", np.ones(3, np.float32))
    again = allreduce(eng, "x", np.ones(3, np.float32))
    runtime.shutdown()
    return [said, total.tolist(), again.tolist()]


def forked_child():
    """A child of fork is refused, also in handles from before; the rank goes on."""
    runtime.init()
    eng = engine.start()
    eng.barrier()
    handle = None
    if eng.world.rank == 0:
        handle = submit(eng, Kind.ALLREDUCE, "x", [np.ones(3, np.float32)])
    pid = os.fork()
    if pid == 0:
        refused = 0
        wait = getattr(handle, "wait", eng.barrier)
        start = partial(eng.start_timeline, os.devnull)
        for call in (eng.barrier, engine.current().barrier, wait, start, eng.stop_timeline):
            try:
                call()
            except ForkedError:
                refused += 1
        os._exit(refused)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if handle is None:
        handle = submit(eng, Kind.ALLREDUCE, "x", [np.ones(3, np.float32)])
    handle.wait()
    return [code, handle.targets[0].owner.tolist()]


def rank_among_dying(secret, rank, size):
    """A rank without MPI, which would end the others: rank 1 dies while they wait for it."""
    control = SocketControl(bytes.fromhex(secret), rank=rank, size=size, timeout_s=20)
    runtime.init(timeout_s=20, control=control)
    eng = engine.start([[0, size - 1]])
    eng.barrier()
    ones = np.ones(3, np.float32)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    said = []
    for name in ("layer.weight", "layer.bias"):
        try:
            allreduce(eng, name, ones)
        except PeerLeftError as err:
            said.append([err.rank, str(err)])
    seconds = time.monotonic() - begun
    print(json.dumps([said, seconds, allreduce(eng, "rest", ones, process_set=1).tolist()]))


if __name__ == "__main__":
    rank_among_dying(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
