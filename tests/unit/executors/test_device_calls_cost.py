"""What a call on a device takes of the host, from the caller's array to the launch.

The time is that which the calling thread has on a core, of the best of many batches: nearly the
same on a busy machine. It should be under 15 us with the fake device's own part. The bounds are
twice that, as a core shared with others takes up to twice as long; ``-s`` shows the times.
"""

import time
from collections import Counter

import numpy as np
import pytest
from support.fake_cuda import FakeMachine
from support.programs import star_plan
from support.threads import run_threads

from blinkrun import buffers

BATCHES, CALLS = 40, 50
ROUNDS = 10  # of batches, at most: one may fall into a busy moment
COUNT = 1024  # of float32: 4 KB
MOST_US, MOST_OURS_US = 30, 15


class Nothing:
    """A device whose calls take no time."""

    def __init__(self, info):
        self.info = info

    def is_capturing(self, stream):
        return False

    def wait(self, stream, event):
        pass

    def launch(self, call, dtype, blocks, stream):
        pass

    def record(self, event, stream):
        pass


class Counted:
    """A device that counts what it is asked for."""

    def __init__(self, api):
        self._api = api
        self.counts = Counter()

    def __getattr__(self, name):
        self.counts[name] += 1
        return getattr(self._api, name)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("BLINKRUN_DEVICE_ARENA_BYTES", "16M")
    made = FakeMachine(1, seed=1, lenient=True)
    made.install(monkeypatch)
    yield made
    made.close()


def microseconds(comm, array, out):
    """What the best batch takes of the thread, for each call."""
    took_s = []
    for _ in range(BATCHES):
        begun = time.thread_time()
        for _ in range(CALLS):
            comm.allreduce(array, out=out)
        took_s.append((time.thread_time() - begun) / CALLS)
    return min(took_s) * 1e6


def without_device(comm, array, out):
    """What is ours: the executor's calls of the runtime do nothing."""
    executor = comm.devices
    api, state = executor.api, executor._state
    launched = state.launched
    executor.api = Nothing(api.info)
    try:
        return microseconds(comm, array, out)
    finally:
        executor.api, state.launched = api, launched


def check(name, measure, most_us):
    """Show what the best round took, and have it under `most_us`."""
    best_us = measure()
    for _ in range(ROUNDS - 1):
        if best_us < most_us:
            break
        best_us = min(best_us, measure())
    print(f"allreduce of 4 KB, {name}: {best_us:.1f} us of the host for each call")
    assert best_us < most_us


@pytest.mark.parametrize("way", ["in place", "to another array", "in a stream"])
def test_a_call_on_an_array_of_a_device(machine, way):
    device = machine.devices[0]

    def body(comm):
        stream = device.new_stream()
        array, out = (device.array_of(np.ones(COUNT, np.float32)) for _ in range(2))
        if way == "in a stream":
            array = array.on(stream)
        if way != "to another array":
            out = array
        comm.allreduce(array, out=out)
        comm.synchronize()

        def on_device():
            with device.hold(), device.hold(stream):  # their threads are not to run meanwhile
                took_us = microseconds(comm, array, out)
            comm.synchronize()
            return took_us

        check(f"{way}, no device", lambda: without_device(comm, array, out), MOST_OURS_US)
        check(f"{way}, a fake device", on_device, MOST_US)
        assert (out.numpy() == 1).all()
        device.free_stream(stream)

    run_threads(star_plan(1), body)


def test_a_call_on_a_tensor(machine, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(buffers, "device_of", lambda item: 0)
    monkeypatch.setattr(buffers, "stream_of", lambda item: 0)

    def body(comm):
        tensor = torch.ones(COUNT)
        comm.allreduce(tensor, out=tensor)
        comm.synchronize()
        check("a tensor, no device", lambda: without_device(comm, tensor, tensor), MOST_OURS_US)

    run_threads(star_plan(1), body)


def test_what_a_call_asks_of_the_runtime(machine):
    """In the default stream a launch and an event, which other streams wait for."""
    device = machine.devices[0]

    def body(comm):
        def counts(array):
            executor = comm.devices
            api = executor.api
            executor.api = counted = Counted(api)
            comm.allreduce(array, out=array)
            executor.api = api
            return counted.counts

        stream = device.new_stream()
        array = device.array_of(np.ones(COUNT, np.float32))
        comm.allreduce(array, out=array)  # the ranks meet
        assert counts(array) == {"launch": 1, "record": 1}
        elsewhere = {"is_capturing": 1, "wait": 1, "launch": 1, "record": 1}
        comm.allreduce(array.on(stream), out=array.on(stream))
        assert counts(array.on(stream)) == elsewhere
        comm.synchronize()
        device.free_stream(stream)

    run_threads(star_plan(1), body)
