"""NCCL's calls on pointers of (fake) devices, in streams; all ranks belong to this process."""

import gc

import numpy as np
import pytest
from support.fake_arrays import FakeArray
from support.fake_cuda import FakeMachine, device_at

from blinkrun import buffers, nccl
from blinkrun.nccl import NcclCommunicator, NcclError, groupEnd, groupStart

SIZE = 2
COUNT = 1003
TYPES = {
    nccl.NCCL_INT8: np.int8,
    nccl.NCCL_UINT32: np.uint32,
    nccl.NCCL_INT64: np.int64,
    nccl.NCCL_UINT64: np.uint64,
    nccl.NCCL_FLOAT16: np.float16,
    nccl.NCCL_FLOAT32: np.float32,
    nccl.NCCL_FLOAT64: np.float64,
}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("BLINKRUN_TIMEOUT_S", "20")
    monkeypatch.setenv("BLINKRUN_ARENA_BYTES", "48M")
    monkeypatch.setenv("BLINKRUN_DEVICE_ARENA_BYTES", "96M")
    made = FakeMachine(SIZE, seed=2)
    made.install(monkeypatch)
    monkeypatch.setattr(buffers, "device_at", device_at)
    yield made
    gc.collect()
    made.close()
    assert made.leaks() == []


@pytest.fixture
def comms(machine):
    made = NcclCommunicator.initAll(SIZE)
    yield made
    for comm in made:
        comm.destroy()


def together(comms, call):
    """Let `call(comm, rank)` of every communicator run in one group."""
    groupStart()
    for rank, comm in enumerate(comms):
        call(comm, rank)
    groupEnd()


def arrays(machine, dtype=np.float32, count=COUNT):
    return [
        device.array_of(np.arange(count).astype(dtype) % 50 + dtype(rank))
        for rank, device in enumerate(machine.devices)
    ]


def through(machine, streams=(0, 0)):
    for device, stream in zip(machine.devices, streams, strict=True):
        device.synchronize(stream)


@pytest.mark.parametrize("datatype", TYPES)
def test_sums_of_every_width(machine, comms, datatype):
    dtype = TYPES[datatype]
    given = arrays(machine, dtype)
    taken = [device.array((COUNT,), dtype) for device in machine.devices]
    together(
        comms,
        lambda comm, rank: comm.allReduce(
            given[rank].pointer, taken[rank].pointer, COUNT, datatype, nccl.NCCL_SUM, 0
        ),
    )
    through(machine)
    for each in taken:
        np.testing.assert_array_equal(each.numpy(), np.arange(COUNT).astype(dtype) % 50 * 2 + 1)


def test_every_collective_in_a_stream(machine, comms):
    streams = [device.new_stream() for device in machine.devices]
    given = arrays(machine, count=SIZE * 100)
    float32, total = nccl.NCCL_FLOAT32, nccl.NCCL_SUM
    base = np.arange(SIZE * 100) % 50
    calls = {
        "reduce": (lambda c, s, d, st: c.reduce(s, d, 200, float32, total, 1, st), 200),
        "broadcast": (lambda c, s, d, st: c.broadcast(s, d, 200, float32, 1, st), 200),
        "allGather": (lambda c, s, d, st: c.allGather(s, d, 200, float32, st), 400),
        "reduceScatter": (lambda c, s, d, st: c.reduceScatter(s, d, 100, float32, total, st), 100),
    }
    expected = {
        "reduce": lambda rank: base * 2 + 1 if rank == 1 else None,
        "broadcast": lambda rank: base + 1,
        "allGather": lambda rank: np.concatenate([base, base + 1]),
        "reduceScatter": lambda rank: (base * 2 + 1)[rank * 100 : rank * 100 + 100],
    }
    for name, (call, count) in calls.items():
        taken = [device.array_of(np.full(count, -1, np.float32)) for device in machine.devices]
        together(
            comms,
            lambda comm, rank, call=call, taken=taken: call(
                comm, given[rank].pointer, taken[rank].pointer, streams[rank]
            ),
        )
        through(machine, streams)
        for rank, each in enumerate(taken):
            wanted = expected[name](rank)
            np.testing.assert_array_equal(each.numpy(), -1 if wanted is None else wanted, name)
    assert [comm.device_id() for comm in comms] == [0, 1]
    for device, stream in zip(machine.devices, streams, strict=True):
        device.free_stream(stream)


def test_calls_return_before_their_streams_come_to_them(machine, comms):
    """After the ranks have met, one thread can call for all without a group."""
    given = arrays(machine)
    pointers = [each.pointer for each in given]

    def call(comm, rank, stream=0):
        where = pointers[rank], pointers[rank], COUNT
        comm.allReduce(*where, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream)

    together(comms, call)
    through(machine)
    streams = [device.new_stream() for device in machine.devices]
    with machine.devices[0].hold(streams[0]), machine.devices[1].hold(streams[1]):
        for rank, comm in enumerate(comms):
            call(comm, rank, streams[rank])
            comm.check_async_error()
    through(machine, streams)
    for each in given:
        np.testing.assert_array_equal(each.numpy(), 2 * (np.arange(COUNT) % 50 * 2 + 1))
    for device, stream in zip(machine.devices, streams, strict=True):
        device.free_stream(stream)


def test_messages(machine, comms):
    given = arrays(machine)
    taken = [device.array((COUNT,), np.float32) for device in machine.devices]
    own = [device.array((COUNT,), np.float32) for device in machine.devices]

    def call(comm, rank):
        comm.send(given[rank].pointer, COUNT, nccl.NCCL_FLOAT32, 1 - rank, 0)
        comm.recv(taken[rank].pointer, COUNT, nccl.NCCL_FLOAT32, 1 - rank, 0)
        comm.send(given[rank].pointer, COUNT, nccl.NCCL_FLOAT32, rank, 0)
        comm.recv(own[rank].pointer, COUNT, nccl.NCCL_FLOAT32, rank, 0)

    together(comms, call)
    through(machine)
    for rank in range(SIZE):
        np.testing.assert_array_equal(taken[rank].numpy(), given[1 - rank].numpy())
        np.testing.assert_array_equal(own[rank].numpy(), given[rank].numpy())


def refused(call, text):
    with pytest.raises(NcclError, match=text) as caught:
        call()
    assert caught.value.status == 4


def test_what_devices_have_not(machine, comms):
    x = arrays(machine, np.uint32)[0].pointer
    host = np.zeros(COUNT, np.uint32).ctypes.data
    comm, number = comms[0], nccl.NCCL_UINT32
    refused(lambda: comm.allReduce(x, x, COUNT, number, nccl.NCCL_AVG, 0), "divide it")
    refused(lambda: comm.allReduce(x, x, COUNT, number, nccl.NCCL_MAX, 0), "signed type")
    refused(
        lambda: comm.allReduce(x, host, COUNT, number, nccl.NCCL_SUM, 0), "device 0 and the host"
    )
    refused(lambda: comm.allReduce(x + 1, x, COUNT, number, nccl.NCCL_SUM, 0), "not aligned")
    refused(lambda: comm.allReduce(host, host, COUNT, number, nccl.NCCL_SUM, 0x5000), "null stream")


def test_a_second_device_of_a_rank(machine, comms):
    given = arrays(machine)

    def call(comm, rank):
        pointer = given[rank].pointer
        comm.allReduce(pointer, pointer, COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, None)

    together(comms, call)
    refused(lambda: call(comms[0], 1), "first call was on device 0")
    through(machine)


def test_a_stream_of_another_device(machine, comms):
    given = arrays(machine)
    other = machine.devices[1].new_stream()

    def call(comm, rank, stream=0):
        pointer = given[rank].pointer
        comm.allReduce(pointer, pointer, COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream)

    together(comms, call)
    with pytest.raises(NcclError, match="invalid resource handle") as caught:
        call(comms[0], 0, other)
    assert caught.value.status == 1
    together(comms, call)
    through(machine)
    for comm in comms:
        comm.check_async_error()
    machine.devices[1].free_stream(other)


def test_ranks_that_disagree(machine, comms):
    given = arrays(machine)

    def call(comm, rank, count):
        pointer = given[rank].pointer
        comm.allReduce(pointer, pointer, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)

    together(comms, lambda comm, rank: call(comm, rank, 7))
    together(comms, lambda comm, rank: call(comm, rank, 8 + rank))
    through(machine)
    for comm in comms:
        with pytest.raises(NcclError, match="allreduce of 9 float32") as caught:
            comm.check_async_error()
        assert caught.value.status == 5
    together(comms, lambda comm, rank: call(comm, rank, 9))
    through(machine)
    for comm in comms:
        comm.check_async_error()
    assert isinstance(given[0], FakeArray)


def test_nothing_to_move(machine, comms):
    """Not even in a communicator's first call, in a stream: nothing says which device it is."""
    given = arrays(machine)
    streams = [device.new_stream() for device in machine.devices]

    def call(comm, rank, pointer, count):
        comm.allReduce(pointer, pointer, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, streams[rank])

    together(comms, lambda comm, rank: call(comm, rank, 0, 0))
    together(comms, lambda comm, rank: call(comm, rank, given[rank].pointer, 0))
    together(comms, lambda comm, rank: call(comm, rank, given[rank].pointer, 3))
    together(comms, lambda comm, rank: call(comm, rank, 0, 0))
    through(machine, streams)
    for device, stream in zip(machine.devices, streams, strict=True):
        device.free_stream(stream)
    np.testing.assert_array_equal(given[0].numpy()[:4], [1, 3, 5, 3])
    for comm in comms:
        comm.check_async_error()
