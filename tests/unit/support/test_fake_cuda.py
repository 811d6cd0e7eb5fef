"""The fake device keeps CUDA's contract where the executor relies on it."""

import ctypes
import inspect
import multiprocessing
import signal
import threading

import numpy as np
import pytest
from support.fake_cuda import FakeMachine, device_at, fake_threads
from support.fake_streams import until

from blinkrun.errors import DeviceError
from blinkrun.executors.device_api import DeviceApi


@pytest.fixture
def machine():
    machine = FakeMachine(3, cut=[(0, 2)], seed=1)
    yield machine
    machine.close()
    until(lambda: not fake_threads(), "the end of streams' threads", 10)


@pytest.fixture
def device(machine):
    return machine.devices[0]


def test_it_offers_what_executors_ask_of_a_device(device):
    for name, asked in inspect.getmembers(DeviceApi, inspect.isfunction):
        if not name.startswith("_"):
            offered = inspect.signature(getattr(type(device), name))
            assert offered.parameters.keys() == inspect.signature(asked).parameters.keys(), name
    assert device.info.index == 0


def test_work_of_a_stream_is_done_in_its_order_and_later(device):
    array = device.array(1 << 16, np.uint8)
    stream = device.new_stream()
    with device.hold(stream):
        device.memset(array.pointer, 1, array.nbytes, stream)
        device.memset(array.pointer, 2, array.nbytes // 2, stream)
        array.numpy()[:] = 7
    device.synchronize(stream)
    assert array.numpy().sum() == (1 + 2) * (1 << 15)
    device.free_stream(stream)


def test_an_event_orders_two_streams(machine):
    first, second = machine.devices[0], machine.devices[1]
    a, b = first.new_stream(), second.new_stream()
    array = first.array(64, np.uint8)
    event = first.new_event()
    assert first.is_through(event)  # never recorded
    with first.hold(a):
        first.memset(array.pointer, 5, 64, a)
        first.record(event, a)
        second.wait(b, event)
        out = second.array(64, np.uint8)
        second.copy(out.pointer, array.pointer, 64, b)
        assert not first.is_through(event)
    second.synchronize(b)
    assert first.is_through(event)
    assert out.numpy().tolist() == [5] * 64


def test_a_graph_does_again_what_was_captured_with_forks(device):
    origin, fork = device.new_stream(), device.new_stream()
    array = device.array(2, np.uint8)
    array.numpy()[:] = 0
    forked, joined = device.new_event(), device.new_event()
    device.begin_capture(origin)
    assert device.is_capturing(origin)
    device.record(forked, origin)
    device.wait(fork, forked)
    assert device.is_capturing(fork)
    device.memset(array.pointer + 1, 3, 1, fork)
    device.record(joined, fork)
    device.wait(origin, joined)
    device.memset(array.pointer, 4, 1, origin)
    graph = device.end_capture(origin)
    assert not device.is_capturing(fork)
    assert array.numpy().tolist() == [0, 0]
    for _ in range(2):
        device.launch_graph(graph, origin)
        device.synchronize(origin)
        assert array.numpy().tolist() == [4, 3]
        array.numpy()[:] = 0


def test_what_a_capture_does_not_allow_is_refused(device):
    origin, other = device.new_stream(), device.new_stream()
    event = device.new_event()
    with device.hold(other):
        device.record(event, other)
        device.begin_capture(origin)
        for call in (
            lambda: device.malloc(1),
            lambda: device.synchronize(other),
            lambda: device.is_through(event),
            lambda: device.wait(origin, event),
        ):
            with pytest.raises(DeviceError, match=r"captur|uncaptured"):
                call()
        with pytest.raises(DeviceError, match="previous error during capture"):
            device.end_capture(origin)
    assert not device.is_capturing(origin)


def test_a_capture_with_a_loose_end_is_refused(device):
    origin, fork = device.new_stream(), device.new_stream()
    event = device.new_event()
    device.begin_capture(origin)
    device.record(event, origin)
    device.wait(fork, event)
    device.memset(device.array(1, np.uint8).pointer, 3, 1, fork)
    with pytest.raises(DeviceError, match="not joined"):
        device.end_capture(origin)


def test_host_memory_has_another_address_on_devices(device):
    here, there = device.host_alloc(100)
    assert here != there
    array = device.array_of(np.arange(100, dtype=np.uint8))
    device.copy(there, array.pointer, 100, 0)
    device.synchronize(0)
    assert np.ctypeslib.as_array((ctypes.c_uint8 * 100).from_address(here))[99] == 99
    with pytest.raises(DeviceError, match="cudaMemsetAsync: invalid argument"):
        device.memset(here, 0, 100, 0)
    device.host_free(here)
    with pytest.raises(DeviceError, match="invalid argument"):
        device.memset(there, 0, 100, 0)


def test_memory_is_not_zero_and_not_used_again(device):
    pointer = device.malloc(1000)
    assert device.free_bytes() < device.info.total_bytes
    assert device_at(pointer + 999) == 0
    out = device.array(1000, np.uint8)
    device.copy(out.pointer, pointer, 1000, 0)
    device.synchronize(0)
    assert out.numpy().any()
    device.free(pointer)
    with pytest.raises(DeviceError, match="invalid argument"):
        device.copy(out.pointer, pointer, 1000, 0)
    assert device.malloc(1000) != pointer


def test_peers_are_reached_once_enabled_and_where_there_is_a_way(machine):
    first, second, third = machine.devices
    array = second.array(8, np.uint8)
    with pytest.raises(DeviceError):
        first.memset(array.pointer, 0, 8, 0)
    assert first.can_reach(second.info.pci_bus_id)
    first.enable_peer(second.info.pci_bus_id)
    first.memset(array.pointer, 0, 8, 0)
    assert not first.can_reach(third.info.pci_bus_id)
    with pytest.raises(DeviceError, match="peer access is not supported"):
        first.enable_peer(third.info.pci_bus_id)


def test_injected_failures_hit_the_rank_and_the_time_they_name(machine):
    mine, other = machine.open_device(0, rank=1), machine.open_device(0, rank=2)
    machine.fail("cudaMalloc", rank=1, at=2, reason="out of memory")
    other.malloc(1)
    mine.malloc(1)
    with pytest.raises(DeviceError, match="device 0: cudaMalloc: out of memory"):
        mine.malloc(1)
    mine.malloc(1)


def test_leaks_are_told(machine, device):
    assert machine.leaks() == []
    pointer, event = device.malloc(1), device.new_event()
    assert machine.leaks() == ["device 0: 1 memory", "device 0: 1 events"]
    device.free(pointer)
    device.free_event(event)
    assert machine.leaks() == []


def test_arrays_show_parts_of_their_memory(device):
    array = device.array_of(np.arange(12, dtype=np.int32).reshape(3, 4))
    column = array[:, 1]
    assert column.numpy().tolist() == [1, 5, 9]
    seen = column.__cuda_array_interface__
    assert seen["data"][0] == array.pointer + 4
    assert seen["strides"] == (16,)
    assert array[1:].__cuda_array_interface__["strides"] is None
    assert array.on(1).__cuda_array_interface__["stream"] == 1


def _other_process(pipe, number):
    machine = FakeMachine(3, cut=[(0, 2)])
    device = machine.devices[number]
    try:
        address = device.open(pipe.recv())
        out = device.array(8, np.uint8)
        device.copy(out.pointer, address, 8, 0)
        device.memset(address, 9, 8, 0)
        device.synchronize(0)
        pipe.send(out.numpy().tolist())
        pipe.recv()  # its writer is gone by then; the mapping stays
    except (DeviceError, EOFError) as err:
        pipe.send(str(err))
    machine.close()


@pytest.mark.parametrize("number", [1, 2])
def test_another_process_opens_memory(device, number):
    """On device 1; device 2 does not reach device 0."""
    pointer = device.malloc(8)
    device.memset(pointer, 6, 8, 0)
    device.synchronize(0)
    with pytest.raises(DeviceError, match="invalid device context"):
        device.open(device.export(pointer))
    mine, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=_other_process, args=(theirs, number))
    child.start()
    try:
        mine.send(device.export(pointer))
        assert mine.poll(60)
        answer = mine.recv()
    finally:
        mine.send(None)
        child.join(20)
        child.kill()
    assert child.exitcode == 0, signal.strsignal(-(child.exitcode or 0))
    if number == 1:
        assert answer == [6] * 8
        out = device.array(8, np.uint8)
        device.copy(out.pointer, pointer, 8, 0)
        device.synchronize(0)
        assert out.numpy().tolist() == [9] * 8
    else:
        assert "peer access is not supported" in answer


def test_threads_of_streams_end_when_there_is_no_work(device):
    streams = [device.new_stream() for _ in range(3)]
    for stream in streams:
        device.synchronize(stream)
    assert 1 <= len(fake_threads()) <= 3
    until(lambda: not fake_threads(), "the end of idle threads", 10)
    device.synchronize(streams[0])  # starts again
    assert threading.active_count() >= 2
