"""What each rank does in test_hosts_device.py: blinkrun.init() over hosts, and a fake device."""

import contextlib
import gc
import os
import signal
import time

import numpy as np
from support.fake_arrays import FakeArray
from support.fake_cuda import FakeMachine

import blinkrun
from blinkrun.errors import BlinkrunError, MismatchError

COUNTS = (0, 1, 509, 4099, 100_003)
DTYPES = (np.float32, np.int64, np.float16, np.uint8)


@contextlib.contextmanager
def on_device():
    """The world, and this rank's device."""
    blinkrun.init()
    world = blinkrun.world()
    machine = FakeMachine(world.size, seed=world.rank)
    machine.install()
    yield world, machine.devices[world.rank]
    blinkrun.shutdown()
    gc.collect()  # errors hold the frames that hold arrays
    machine.close()
    left = machine.leaks(within_s=10)
    assert not left, left


def values_of(array):
    """What a result holds; its call is through."""
    return FakeArray(
        array.pointer, array.shape, array.dtype, device=array.device, memory=array
    ).numpy()


def every_collective(in_arena):
    """What came out wrong, for many counts and types; "some": hosts differ in where arrays lie."""
    with on_device() as (world, device):
        world.allreduce(device.array_of(np.ones(3, np.float32)))  # the devices join
        world.synchronize()
        use_arena = in_arena == "all" or (in_arena == "some" and world.cross_rank % 2 == 0)
        wrong = []
        for number, count in enumerate(COUNTS):
            dtype = np.dtype(DTYPES[number % len(DTYPES)])
            wrong += _wrong(world, device, count, dtype, use_arena)
        return wrong


def _wrong(world, device, count, dtype, use_arena):
    rank, size = world.rank, world.size
    # Small whole numbers: every sum is exact in every type.
    data = np.stack([(np.arange(count * size) + 3 * r) % 4 for r in range(size)]).astype(dtype)
    mine = data[:, :count]
    found = []

    def array(values):
        if not use_arena:
            return device.array_of(values)
        memory = world.empty_bytes(max(values.nbytes, 1), device=True)
        made = FakeArray(memory.pointer, values.shape, values.dtype, device=rank, memory=memory)
        made.numpy()[...] = values
        return made

    def check(what, got, expected):
        world.synchronize()
        if not np.array_equal(values_of(got).reshape(-1), expected.reshape(-1)):
            found.append(f"{what} of {count} {dtype}")

    x, whole = array(mine[rank]), array(data[rank])
    root = count % size
    check("sum", world.allreduce(x, out=array(mine[rank] * 0)), mine.sum(0, dtype=dtype))
    check("max", world.allreduce(x, op=blinkrun.Max), mine.max(0))
    check("broadcast", world.broadcast(x, root=root), mine[root])
    reduced = world.reduce(x, root=root)
    if rank == root:
        check("reduce", reduced, mine.sum(0, dtype=dtype))
    check("allgather", world.allgather(x), mine)
    blocks = data.sum(0, dtype=dtype).reshape(size, count)
    check("reducescatter", world.reducescatter(whole), blocks[rank])
    if count:
        check("alltoall", world.alltoall(whole), data.reshape(size, size, count)[:, rank])
    world.allreduce(x, out=x)
    check("sum in place", x, mine.sum(0, dtype=dtype))
    return found


def many_calls_under_way(calls):
    """Whether calls are right that were all enqueued before any was waited for."""
    with on_device() as (world, device):
        arrays = [device.array_of(np.full(1000, at, np.int32)) for at in range(calls)]
        for each in arrays:
            world.allreduce(each, out=each)
        world.synchronize()
        return [int(each.numpy()[0]) for each in arrays] == [at * world.size for at in range(calls)]


def different_calls(odd):
    """What ranks are told when one of them calls something else, and that the next call works."""
    with on_device() as (world, device):
        x = device.array_of(np.ones(1000, np.float32))
        world.allreduce(x)
        world.synchronize()
        said = []
        for count, op in ((500, blinkrun.Sum), (1000, blinkrun.Max)):
            differs = world.rank == odd
            y = device.array_of(np.ones(count if differs else 1000, np.float32))
            try:
                world.allreduce(y, op=op if differs else blinkrun.Sum)
                world.synchronize()
            except MismatchError as err:
                said.append(str(err))
        world.allreduce(x, out=x)
        world.synchronize()
        return [said, float(x.numpy()[0])]


def a_rank_that_ends(how, ends):
    """What the others are told, and after how long."""
    blinkrun.init()
    world = blinkrun.world()
    machine = FakeMachine(world.size, seed=world.rank)
    machine.install()
    device = machine.devices[world.rank]
    x = device.array_of(np.ones(50_000, np.float32))
    world.allreduce(x)
    world.synchronize()
    group = world.executor.group
    if world.rank == ends:
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "is late":
            while not group.aborted():
                group.gone_everywhere()  # takes what other hosts tell
                time.sleep(0.01)
        blinkrun.shutdown()
        return None
    if how == "is late":  # from here: a start takes as long as it takes
        world.devices.timeout_s = 1.0
    started = time.monotonic()
    try:
        world.allreduce(x)
        world.synchronize()
    except BlinkrunError as err:
        return [type(err).__name__, str(err), time.monotonic() - started]
    return "went on"


def capture_is_refused():
    with on_device() as (world, device):
        x = device.array_of(np.ones(100, np.float32))
        world.allreduce(x, out=x)
        world.synchronize()
        stream = device.new_stream()
        device.begin_capture(stream)
        try:
            world.allreduce(x.on(stream), out=x.on(stream))
            said = "captured"
        except BlinkrunError as err:
            said = str(err)
        device.end_capture(stream)
        world.allreduce(x, out=x)
        world.synchronize()
        device.free_stream(stream)
        return [said, float(x.numpy()[0])]


def cores_while_idle(seconds):
    """What part of a core a rank takes between calls."""
    with on_device() as (world, device):
        x = device.array_of(np.ones(1000, np.float32))
        world.allreduce(x, out=x)
        world.synchronize()
        before = time.process_time()
        time.sleep(seconds)
        return (time.process_time() - before) / seconds
