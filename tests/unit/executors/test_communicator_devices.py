"""Collectives of a communicator on arrays of (fake) devices: order, places, errors before moves."""

import gc
import threading

import numpy as np
import pytest
from support.fake_arrays import FakeArray
from support.fake_cuda import FakeMachine
from support.programs import star_plan
from support.threads import run_threads

from blinkrun import buffers, devices
from blinkrun.errors import (
    CollectiveError,
    CollectiveTimeoutError,
    DeviceError,
    InvalidBufferError,
    LaunchError,
    MismatchError,
    NotInitializedError,
    UsageError,
)
from blinkrun.types import Op

SIZE = 2
COUNT = 1003  # no multiple of anything


@pytest.fixture
def machine(monkeypatch, tmp_path):
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("BLINKRUN_DEVICE_ARENA_BYTES", "96M")
    made = FakeMachine(SIZE, seed=1)
    made.install(monkeypatch)
    yield made
    gc.collect()  # errors hold the frames that hold arrays
    made.close()
    assert made.leaks() == []


def on_ranks(body, size=SIZE, **options):
    return run_threads(star_plan(size), body, **options)


def mine(machine, rank, count=COUNT, dtype=np.float32):
    return machine.devices[rank].array_of(np.arange(count).astype(dtype) + rank)


def shown(comm, array):
    """The values of an array once all calls are through."""
    comm.synchronize()
    pointer = array.pointer
    as_fake = FakeArray(pointer, array.shape, array.dtype, device=array.device, memory=array)
    return as_fake.numpy().copy()


def error_of(call):
    try:
        call()
    except Exception as err:
        return err
    return None


def summed(count=COUNT, dtype=np.float32, size=SIZE):
    return sum(np.arange(count).astype(dtype) + rank for rank in range(size))


def test_all_collectives_on_devices(machine):
    def body(comm):
        rank = comm.rank
        x = mine(machine, rank, SIZE * 50)
        rows = np.arange(SIZE * 50, dtype=np.float32)
        got = {
            "allreduce": shown(comm, comm.allreduce(x)),
            "scaled": shown(comm, comm.allreduce(x, prescale=2.0, postscale=0.5)),
            "max": shown(comm, comm.allreduce(x, op=Op.MAX)),
            "broadcast": shown(comm, comm.broadcast(x, root=1)),
            "allgather": shown(comm, comm.allgather(x)),
            "reducescatter": shown(comm, comm.reducescatter(x)),
            "alltoall": shown(comm, comm.alltoall(x)),
        }
        reduced = comm.reduce(x, root=1)
        assert (reduced is None) == (rank != 1)
        if reduced is not None:
            got["reduce"] = shown(comm, reduced)
        total = rows * 2 + 1
        half = slice(rank * 50, rank * 50 + 50)
        expected = {
            "allreduce": total,
            "scaled": total,
            "max": rows + 1,
            "broadcast": rows + 1,
            "allgather": np.concatenate([rows, rows + 1]),
            "reducescatter": total[half],
            "alltoall": np.concatenate([rows[half], rows[half] + 1]),
            "reduce": total,
        }
        for name, value in got.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)
        comm.barrier()

    on_ranks(body)


def test_in_place_and_with_out(machine):
    def body(comm):
        x = mine(machine, comm.rank)
        out = machine.devices[comm.rank].array((COUNT,), np.float32)
        assert comm.allreduce(x, out=out) is out
        np.testing.assert_array_equal(shown(comm, out), summed())
        comm.allreduce(x, out=x)
        np.testing.assert_array_equal(shown(comm, x), summed())

    on_ranks(body)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float16, np.float64])
def test_averages_and_scales_are_those_of_the_host(machine, dtype):
    def body(comm):
        values = (np.arange(COUNT) % 11 - 5 + 3 * comm.rank).astype(dtype)
        x = machine.devices[comm.rank].array_of(values)
        for how in ({"op": Op.AVERAGE}, {"prescale": 1.5}, {"op": Op.AVERAGE, "postscale": 0.5}):
            wanted = comm.allreduce(values, **how)
            np.testing.assert_array_equal(shown(comm, comm.allreduce(x, **how)), wanted)

    on_ranks(body)


def test_a_call_returns_before_it_is_through(machine):
    """What is before it in the caller's stream holds it, and nothing holds the host."""
    holding = threading.Barrier(SIZE)

    def body(comm):
        device = machine.devices[comm.rank]
        x, out = mine(machine, comm.rank), device.array_of(np.zeros(COUNT, np.float32))
        comm.allreduce(x, out=out)  # the ranks meet
        shown(comm, out)[...] = 0
        stream = device.new_stream()
        with device.hold(stream):
            comm.allreduce(x.on(stream), out=out.on(stream))
            handle = comm.allreduce_async(x.on(stream))
            assert not handle.done()
            handle.wait()
            holding.wait(20)
        np.testing.assert_array_equal(shown(comm, handle.synchronize()), summed())
        assert handle.done()
        device.free_stream(stream)

    on_ranks(body)


def test_a_handle_orders_the_streams(machine):
    def body(comm):
        device = machine.devices[comm.rank]
        stream = device.new_stream()
        x = mine(machine, comm.rank).on(stream)
        handles = [comm.allreduce_async(x), comm.broadcast_async(x, root=1)]
        handles.append(comm.allgather_async(x))
        results = [handle.wait() for handle in handles]
        copies = [device.array(each.shape, each.dtype) for each in results]
        for each, copy in zip(results, copies, strict=True):
            assert buffers.stream_of(each) == stream
            device.copy(copy.pointer, each.pointer, copy.nbytes, stream)
        device.synchronize(stream)
        np.testing.assert_array_equal(copies[0].numpy(), summed())
        np.testing.assert_array_equal(copies[1].numpy(), np.arange(COUNT) + 1)
        assert copies[2].shape == (SIZE * COUNT,)
        device.free_stream(stream)

    on_ranks(body)


def test_calls_in_a_graph(machine):
    """Captured once, replayed on what the arrays then hold."""

    def body(comm):
        device = machine.devices[0]
        stream = device.new_stream()
        x = device.array_of(np.arange(COUNT, dtype=np.float32)).on(stream)
        outs = [device.array((COUNT,), np.float32).on(stream) for _ in range(2)]
        comm.allreduce_async(x, out=outs[0]).wait()  # of its kind the first
        device.begin_capture(stream)
        comm.allreduce(x, prescale=2.0, out=outs[0])
        handle = comm.allreduce_async(outs[0], out=outs[1])
        handle.wait()
        graph = device.end_capture(stream)
        for value in (3.0, 5.0):
            comm.synchronize()
            x.numpy()[...] = value
            device.launch_graph(graph, stream)
            device.synchronize(stream)
            assert (outs[1].numpy() == 2 * value).all()
        with pytest.raises(UsageError, match="captured"):
            handle.synchronize()
        comm.allreduce_async(x, out=outs[0]).synchronize()
        device.free_stream(stream)

    on_ranks(body, size=1)


def test_synchronize_after_the_stream_of_a_call_is_destroyed(machine):
    def body(comm):
        device = machine.devices[comm.rank]
        stream = device.new_stream()
        x = mine(machine, comm.rank).on(stream)
        comm.allreduce(x, out=x)
        device.free_stream(stream)
        comm.synchronize()
        assert (x.numpy() == summed()).all()

    on_ranks(body)


def test_memory_of_the_arena(machine):
    def body(comm):
        with pytest.raises(UsageError, match="before the ranks have met"):
            comm.empty(3, device=True)
        comm.allreduce(mine(machine, comm.rank))
        x = comm.empty((5, 7), "int64", device=True)
        assert isinstance(x, devices.DeviceArray)
        assert comm.devices.contains(x.pointer)
        assert x.__cuda_array_interface__["shape"] == (5, 7)
        values = shown(comm, x)
        values[...] = 0
        FakeArray(x.pointer, x.shape, x.dtype, device=x.device, memory=x).numpy()[...] = comm.rank
        comm.allreduce(x, out=x)
        assert (shown(comm, x) == 1).all()
        raw = comm.empty_bytes(100, device=True)
        assert comm.devices.contains(raw.pointer)
        assert comm.device_index == comm.rank
        assert "on devices" in comm.describe()

    on_ranks(body)


def test_a_strided_input_is_refused_without_its_library_and_in_place(machine):
    def body(comm):
        x = mine(machine, comm.rank, 2 * COUNT)[::2]
        assert not buffers.is_packed(x)
        out = machine.devices[comm.rank].array((COUNT,), np.float32)
        with pytest.raises(InvalidBufferError, match="cannot be copied here"):
            comm.allreduce(x, out=out)
        with pytest.raises(InvalidBufferError, match=r"in place; pass .contiguous\(\)"):
            comm.allreduce(x, out=x)
        with pytest.raises(InvalidBufferError, match="not contiguous"):
            comm.allreduce(mine(machine, comm.rank), out=x)
        comm.allreduce(mine(machine, comm.rank), out=out)  # nothing has moved, the next call works
        np.testing.assert_array_equal(shown(comm, out), summed())

    on_ranks(body)


def test_arrays_that_do_not_fit_together(machine):
    def body(comm):
        device = machine.devices[comm.rank]
        x = mine(machine, comm.rank)
        with pytest.raises(InvalidBufferError, match=r"on device [01], out is memory of the host"):
            comm.allreduce(x, out=np.empty(COUNT, np.float32))
        with pytest.raises(InvalidBufferError, match="array is memory of the host, out is on dev"):
            comm.allreduce(np.empty(COUNT, np.float32), out=x)
        other = mine(machine, 1 - comm.rank)
        with pytest.raises(InvalidBufferError, match="both must be on one device"):
            comm.allreduce(x, out=other)
        stream, another = device.new_stream(), device.new_stream()
        with pytest.raises(InvalidBufferError, match="in the order of one stream"):
            comm.allreduce(x.on(another), out=device.array((COUNT,), np.float32).on(stream))
        odd = FakeArray(x.pointer + 1, (3,), np.float32, device=comm.rank, memory=x)
        with pytest.raises(InvalidBufferError, match="not aligned"):
            comm.allreduce(odd)
        with pytest.raises(InvalidBufferError, match="dtype"):
            comm.allreduce(device.array((3,), np.uint16))
        fixed = FakeArray(
            x.pointer, (COUNT,), np.float32, device=comm.rank, memory=x, readonly=True
        )
        with pytest.raises(InvalidBufferError, match="read-only"):
            comm.allreduce(x, out=fixed)
        comm.allreduce(x)
        with pytest.raises(InvalidBufferError, match="one device of a communicator"):
            comm.allreduce(other)
        device.free_stream(stream)
        device.free_stream(another)

    on_ranks(body)


def test_a_stream_of_another_device(machine):
    """Is refused where it is given; as nothing was enqueued, the next calls of all ranks fit."""
    streams = [device.new_stream() for device in machine.devices]

    def body(comm):
        x = mine(machine, comm.rank)
        comm.allreduce(x)
        with pytest.raises(DeviceError, match=f"rank {comm.rank}.*invalid resource handle"):
            comm.allreduce(x.on(streams[1 - comm.rank]), out=x)
        got = comm.allreduce(x.on(streams[comm.rank]))
        np.testing.assert_array_equal(shown(comm, got), summed())

    on_ranks(body)
    for device, stream in zip(machine.devices, streams, strict=True):
        device.free_stream(stream)


def test_a_rank_that_calls_with_memory_of_the_host(machine):
    """The others learn it before anything has moved, and the next call works."""

    def body(comm):
        x = mine(machine, comm.rank) if comm.rank else np.ones(COUNT, np.float32)
        error = error_of(lambda: comm.allreduce(x))
        assert isinstance(error, MismatchError)
        assert "rank 1: a first call on a device" in str(error)
        np.testing.assert_array_equal(
            shown(comm, comm.allreduce(mine(machine, comm.rank))), summed()
        )

    on_ranks(body)


def test_a_rank_that_calls_with_memory_of_the_host_later(machine):
    """The calls never meet; the deadline ends both, and its line says what may be wrong."""

    def body(comm):
        comm.allreduce(mine(machine, comm.rank))
        comm.synchronize()
        if comm.rank:
            error = error_of(lambda: comm.allreduce(np.ones(COUNT, np.float32)))
            assert "memory of the host and calls on devices do not meet" in str(error)
        else:
            error = error_of(lambda: [comm.allreduce(mine(machine, 0)), comm.synchronize()])
        assert isinstance(error, CollectiveTimeoutError)
        assert "\n" not in str(error)

    on_ranks(body, timeout_s=1.5)


def test_a_rank_that_does_not_come(machine):
    over = threading.Event()

    def body(comm):
        if comm.rank == 0:
            error = error_of(lambda: comm.allreduce(mine(machine, 0)))
            over.set()
            assert isinstance(error, CollectiveTimeoutError)
            assert error.ranks == (1,)
            assert "a first call on a device" in str(error)
        assert over.wait(20)

    on_ranks(body, timeout_s=1.0)


def test_a_device_that_cannot_be_used(machine, monkeypatch):
    from blinkrun.executors import cuda

    def refuse(index, rank=-1):
        if rank == 1:
            raise DeviceError("cudaSetDevice", index, "out of order", rank=rank)
        return machine.open_device(index, rank)

    monkeypatch.setattr(cuda, "open_device", refuse)

    def body(comm):
        error = error_of(lambda: comm.allreduce(mine(machine, comm.rank)))
        assert isinstance(error, DeviceError if comm.rank else LaunchError)
        assert "out of order" in str(error)
        assert "rank 1" in str(error)
        assert comm.devices is None
        host = comm.allreduce(np.ones(3, np.float32))  # what is there goes on working
        assert (host == SIZE).all()

    on_ranks(body)


def test_ranks_that_disagree_on_devices(machine):
    def body(comm):
        x = mine(machine, comm.rank, 10 + comm.rank)
        error = error_of(lambda: [comm.allreduce(x), comm.synchronize()])
        assert isinstance(error, MismatchError)
        np.testing.assert_array_equal(
            shown(comm, comm.allreduce(mine(machine, comm.rank))), summed()
        )

    on_ranks(body)


def test_after_close(machine):
    def body(comm):
        x = mine(machine, comm.rank)
        comm.allreduce(x)
        comm.synchronize()
        comm.close()
        comm.close()
        with pytest.raises(NotInitializedError):
            comm.allreduce(x)
        with pytest.raises(NotInitializedError):
            comm.device_executor(comm.rank)

    on_ranks(body)


def test_one_rank(machine):
    def body(comm):
        x = mine(machine, 0)
        got = shown(comm, comm.allreduce(x, prescale=3.0))
        np.testing.assert_array_equal(got, np.arange(COUNT, dtype=np.float32) * 3)
        assert shown(comm, comm.allgather(x)).shape == (COUNT,)

    on_ranks(body, size=1)


def test_messages_between_devices(machine):
    def body(comm):
        peer = 1 - comm.rank
        device = machine.devices[comm.rank]
        x = mine(machine, comm.rank, 100_003, np.int32)
        got = device.array((100_003,), np.int32)
        if comm.rank == 0:
            comm.send(x, peer)
            comm.recv(got, peer)
        else:
            comm.recv(got, peer)
            comm.send(x, peer)
        np.testing.assert_array_equal(got.numpy(), np.arange(100_003) + peer)
        with pytest.raises(InvalidBufferError, match="not contiguous"):
            comm.send(x[::2], peer)

    on_ranks(body)


def test_a_failure_on_the_device_is_raised_later(machine):
    """The kernel that waits in vain ends by its deadline; the call itself has returned."""

    def body(comm):
        comm.allreduce(mine(machine, comm.rank))
        comm.synchronize()
        if comm.rank == 0:
            comm.allreduce(mine(machine, 0))
            error = error_of(comm.synchronize)
            assert isinstance(error, CollectiveError)
            assert isinstance(error_of(lambda: comm.allreduce(mine(machine, 0))), CollectiveError)

    on_ranks(body, timeout_s=1.5)
