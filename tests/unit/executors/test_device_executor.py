"""The executor of devices on fake ones: order of streams, errors, memory, the end."""

import gc
import threading
import weakref

import numpy as np
import pytest
from support.devices import DeviceRank, joined, run_devices
from support.fake_cuda import FakeMachine
from support.fake_streams import until
from support.programs import chain_plan, star_plan
from support.threads import ARENA

from blinkrun.comm.threads import thread_controls
from blinkrun.comm.world import World
from blinkrun.errors import (
    AbortedError,
    InvalidBufferError,
    NotInitializedError,
    PeerLeftError,
    UsageError,
)
from blinkrun.executors import device_memory, device_state
from blinkrun.executors.cpu import CpuExecutor
from blinkrun.executors.device import DeviceExecutor
from blinkrun.types import Collective


@pytest.fixture
def machine():
    made = FakeMachine(3, seed=1)
    yield made
    made.close()
    assert made.leaks() == []


def allreduce(me, count=1000, *, stream=0, value=None):
    """Sum rank + 1 over the ranks in place; returns the array."""
    x = me.device.array_of(np.full(count, me.rank + 1 if value is None else value, np.float32))
    me.run(Collective.ALLREDUCE, x, x, stream=stream)
    return x


def test_no_room_for_the_arena_says_sizes_and_option():
    machine = FakeMachine(2, total_bytes=64 << 20)
    results = run_devices(
        star_plan(2), lambda me: 0, machine=machine, catch=True, arena_bytes=1 << 30
    )
    machine.close()
    text = str(results[0])
    assert "rank 0: device 0: cudaMalloc: no room for the arena of 1090519040 bytes" in text
    assert f"{64 << 20} bytes are free; set BLINKRUN_DEVICE_ARENA_BYTES to less" in text
    assert machine.leaks() == []


@pytest.mark.parametrize("plan", [star_plan(3), chain_plan(3)])
def test_pairs_out_of_reach_meet_in_host_memory(plan):
    machine = FakeMachine(3, cut=[(0, 2)], seed=2)

    def body(me):
        x, y = allreduce(me, 7), allreduce(me, 100_003)
        me.executor.synchronize(0)
        return set(x.numpy().tolist()), set(y.numpy().tolist())

    assert run_devices(plan, body, machine=machine, scratch_bytes=1 << 19) == [({6.0}, {6.0})] * 3
    machine.close()
    assert machine.leaks() == []


def test_peer_access_that_is_refused_goes_through_the_host(machine, capfd):
    machine.fail("cudaDeviceEnablePeerAccess", rank=1, reason="too many peers")

    def body(me):
        x = allreduce(me)
        me.executor.synchronize(0)
        return set(x.numpy().tolist())

    assert run_devices(star_plan(3), body, machine=machine, scratch_bytes=1 << 19) == [{6.0}] * 3
    said = capfd.readouterr().err
    assert (
        "[rank 1] rank 1: device 1: cudaDeviceEnablePeerAccess: too many peers; memory of" in said
    )


def test_calls_keep_their_order_when_the_caller_changes_streams(machine):
    """The second call waits for the first, though nothing in its own stream holds it."""

    def body(me):
        one, two = me.device.new_stream(), me.device.new_stream()
        x = me.device.array_of(np.full(5000, me.rank + 1, np.float32))
        allreduce(me)  # programs are there
        with me.device.hold(one):
            me.run(Collective.ALLREDUCE, x, x, stream=one)
            me.run(Collective.ALLREDUCE, x, x, stream=two)
            job = me.executor.submit(me.request(Collective.ALLREDUCE, x, x, stream=two))
            is_done = job.done()
        job.wait()
        for stream in (one, two):
            me.device.synchronize(stream)
            me.device.free_stream(stream)
        return is_done, set(x.numpy().tolist())

    assert run_devices(star_plan(3), body, machine=machine) == [(False, {54.0})] * 3


def test_a_stream_waits_for_a_job_and_the_host_does_not(machine):
    def body(me):
        mine, other = me.device.new_stream(), me.device.new_stream()
        x = me.device.array_of(np.full(1000, me.rank + 1, np.float32))
        y = me.device.array((1000,), np.float32)
        with me.device.hold(mine):
            job = me.executor.submit(me.request(Collective.ALLREDUCE, x, x, stream=mine))
            job.wait_on(other)
            me.device.copy(y.pointer, x.pointer, 4000, other)
        me.executor.synchronize(other)
        done = job.done()
        for stream in (mine, other):
            me.device.free_stream(stream)
        return done, set(y.numpy().tolist())

    assert run_devices(star_plan(3), body, machine=machine) == [(True, {6.0})] * 3


def test_a_rank_that_leaves_ends_the_waits_of_others(machine):
    def body(me):
        x = allreduce(me)
        me.executor.synchronize(0)
        if me.rank == 2:
            me.executor.close()
            me.host.group.leave()
            return "left"
        allreduce(me)
        with pytest.raises(PeerLeftError, match="rank 2 has left the job while rank") as caught:
            me.executor.synchronize(0)
        assert x.numpy()[0] == 6.0
        return caught.value.rank

    assert run_devices(star_plan(3), body, machine=machine) == [2, 2, "left"]


def test_who_has_finished_may_leave_while_others_are_at_it(machine):
    """The root of a broadcast is through first; nobody waits for it any more."""

    def body(me):
        stream = me.device.new_stream()
        x = me.device.array_of(np.full(100, me.rank, np.float32))
        me.run(Collective.BROADCAST, x, x, stream=stream)  # programs are there
        me.executor.synchronize(stream)
        me.run(Collective.BROADCAST, x, x, stream=stream)
        if me.rank == 0:
            me.executor.close()
            me.host.group.leave()
        else:
            me.executor.synchronize(stream)
        me.device.synchronize(stream)
        me.device.free_stream(stream)
        return set(x.numpy().tolist())

    assert run_devices(star_plan(3), body, machine=machine) == [{0.0}] * 3


def test_graphs_capture_calls_and_replay_them(machine):
    meet = threading.Barrier(3, timeout=20)

    def body(me):
        stream = me.device.new_stream()
        x = me.device.array_of(np.full(5000, 1.0, np.float32))
        allreduce(me, stream=stream)
        me.executor.synchronize(stream)
        meet.wait()
        me.device.begin_capture(stream)
        me.run(Collective.ALLREDUCE, x, x, stream=stream)
        job = me.executor.submit(me.request(Collective.ALLREDUCE, x, x, stream=stream))
        job.wait_on(stream)
        with pytest.raises(UsageError, match="captured"):
            job.wait()
        graph = me.device.end_capture(stream)
        meet.wait()
        before = set(x.numpy().tolist())
        for _ in range(2):
            me.device.launch_graph(graph, stream)
        me.run(Collective.ALLREDUCE, x, x, stream=stream)
        me.executor.synchronize(stream)
        me.device.free_stream(stream)
        return before, set(x.numpy().tolist())

    assert run_devices(star_plan(3), body, machine=machine) == [({1.0}, {3.0**5})] * 3


def test_memory_of_a_call_lives_until_it_is_through(machine):
    def body(me):
        stream = me.device.new_stream()
        with me.device.hold(stream):
            gone = weakref.ref(allreduce(me, stream=stream))
            gc.collect()
            held = gone() is not None
        me.executor.synchronize(stream)
        allreduce(me, stream=stream)
        me.executor.synchronize(stream)
        gc.collect()
        me.device.free_stream(stream)
        return held, gone() is not None

    assert run_devices(star_plan(3), body, machine=machine) == [(True, False)] * 3


def test_the_arena_is_symmetric_memory_that_comes_back(machine):
    def body(me):
        size = 1 << 20
        memory = me.executor.empty_bytes(size)
        inside = me.executor.contains(memory.pointer), me.executor.contains(memory.pointer - 4096)
        with pytest.raises(InvalidBufferError, match="set BLINKRUN_DEVICE_ARENA_BYTES to more"):
            me.executor.empty_bytes(1 << 40)
        pointer = memory.pointer
        del memory
        gc.collect()
        return inside, me.executor.empty_bytes(size).pointer == pointer

    results = run_devices(star_plan(3), body, machine=machine, arena_bytes=8 << 20)
    assert [again for _, again in results] == [True] * 3
    assert {inside[0] for inside, _ in results} == {True}


def test_a_buffer_of_another_device_is_refused(machine):
    def body(me):
        x = me.device.array_of(np.ones(3, np.float32))
        request = me.request(Collective.ALLREDUCE, x, x)
        other = type(request)(**{
            name: getattr(request, name) for name in request.__slots__ if name != "device"
        }, device=me.rank + 1)  # fmt: skip
        with pytest.raises(InvalidBufferError, match=f"rank {me.rank}: the buffer is on device"):
            me.executor.run(other)

    run_devices(star_plan(3), body, machine=machine)


def test_after_close_calls_are_refused_and_close_does_nothing(machine):
    def body(me):
        x = me.device.array_of(np.ones(3, np.float32))
        request = me.request(Collective.ALLREDUCE, x, x)
        job = me.executor.submit(request)
        job.wait()
        me.executor.close()
        me.executor.close()
        for call in (me.executor.run, me.executor.submit):
            with pytest.raises(NotInitializedError):
                call(request)
        with pytest.raises(NotInitializedError):
            me.executor.empty_bytes(8)
        me.executor.check()
        return job.done()

    assert run_devices(star_plan(3), body, machine=machine) == [True] * 3


def test_several_ranks_of_one_device_have_a_part_of_it_each():
    machine = FakeMachine(1, most_blocks=9, seed=5)

    def body(me):
        stream = me.device.new_stream()  # ranks that wait for each other must not share one
        x = allreduce(me, 200_000, stream=stream)
        me.executor.synchronize(stream)
        me.device.free_stream(stream)
        return set(x.numpy().tolist())

    results = run_devices(star_plan(4), body, machine=machine, devices=[0] * 4)
    machine.close()
    assert results == [{10.0}] * 4
    assert {blocks for _, blocks in machine.launches} <= {1, 2}


def test_a_call_leaves_half_of_a_small_device_to_others():
    """Kernels of two communicators must not wait for each other's place."""
    machine = FakeMachine(2, most_blocks=10, seed=5)

    def body(me):
        x = allreduce(me, 400_000)
        me.executor.synchronize(0)
        return set(x.numpy().tolist())

    results = run_devices(star_plan(2), body, machine=machine)
    machine.close()
    assert results == [{3.0}] * 2
    assert 1 < max(blocks for _, blocks in machine.launches) <= 5


def test_too_many_ranks_on_a_device_are_refused():
    machine = FakeMachine(1, most_blocks=3)
    results = run_devices(star_plan(4), lambda me: 0, machine=machine, devices=[0] * 4, catch=True)
    machine.close()
    assert all("4 ranks share device 0, which runs 3 thread blocks" in str(r) for r in results)


def test_an_executor_that_is_dropped_gives_everything_back(machine):
    (control,) = thread_controls(1)
    plan, world = star_plan(1), World(0, 1, ("host",), ((0,),))
    host = CpuExecutor(control, range(1), plan, arena_bytes=ARENA, timeout_s=5, cores=1)
    api = machine.open_device(0, 0)
    executor = DeviceExecutor(
        control, world, host, api, make_plan=lambda infos, reach: plan, timeout_s=5
    )
    allreduce(DeviceRank(executor, host, api), 10)
    executor.synchronize(0)
    assert "blinkrun-devices" in {thread.name for thread in threading.enumerate()}
    del executor
    gc.collect()
    assert "blinkrun-devices" not in {thread.name for thread in threading.enumerate()}
    assert machine.leaks() == []


class Woken(threading.Event):
    """Counts how often the watcher is woken."""

    count = 0

    def set(self):
        self.count += 1
        super().set()


def test_calls_a_little_apart_do_not_wake_the_watcher(machine, monkeypatch):
    """To wake it took more of the caller than the rest of the call."""
    monkeypatch.setattr(device_state, "IDLE_LOOKS", 1 << 30)

    def body(me):
        allreduce(me, 10)
        me.executor.synchronize(0)
        me.executor._state._woken = woken = Woken()
        for _ in range(20):
            allreduce(me, 10)
            me.executor.synchronize(0)
        return woken.count

    assert run_devices(star_plan(2), body, machine=machine) == [0, 0]


def test_a_call_after_a_while_wakes_the_watcher(machine, monkeypatch):
    """It sees that a rank has left which the call waits for."""
    monkeypatch.setattr(device_state, "IDLE_LOOKS", 1)
    left = threading.Event()

    def body(me):
        allreduce(me, 10)
        me.executor.synchronize(0)
        state = me.executor._state
        until(lambda: state._asleep, "the watcher's sleep", 10)
        if me.rank == 1:
            return left.set()
        assert left.wait(20)
        allreduce(me, 10)
        with pytest.raises(PeerLeftError, match="rank 1 has left"):
            me.executor.synchronize(0)
        return None

    run_devices(star_plan(2), body, machine=machine)


def test_a_second_group_takes_less_of_the_device(machine):
    def body(me):
        (control,) = thread_controls(1)
        how = {"timeout_s": 5, "arena_bytes": 0, "names": [me.rank]}
        with joined(control, star_plan(1), me.device, **how) as second:
            return room(me), room(second)

    found = run_devices(star_plan(3), body, machine=machine, arena_bytes=0)
    assert found == [(512, 64)] * 3  # of 8 GiB a sixteenth, and of that an eighth


def room(me):
    """Return how many MiB `empty_bytes` can hand out in one piece."""
    for size in (1 << at for at in range(14, -1, -1)):
        try:
            return me.executor.empty_bytes(size << 20).num_bytes >> 20
        except InvalidBufferError:
            continue
    return 0


def test_memory_that_others_have_stays_until_they_have_left(machine, monkeypatch):
    monkeypatch.setattr(device_memory, "LEAVE_S", 0.02)
    first_is_out, looked = threading.Event(), threading.Event()

    def body(me):
        allreduce(me)
        me.executor.synchronize(0)
        if me.rank == 0:
            me.executor.close()
            first_is_out.set()
            looked.wait(20)
            return None
        first_is_out.wait(20)
        held = [line for line in machine.leaks() if line.startswith("device 0")]
        if me.rank == 1:
            looked.set()
        return held

    _, *seen = run_devices(star_plan(3), body, machine=machine)
    assert ["device 0: 1 memory"] in seen
    device_memory.sweep()
    assert machine.leaks() == []


def test_a_wait_that_is_interrupted_ends_the_call_on_all_ranks(machine):
    """Rank 1 never comes; a signal's handler raises while rank 0 waits."""

    meet, both = threading.Barrier(3, timeout=20), threading.Barrier(2, timeout=20)

    def body(me):
        allreduce(me)
        me.executor.synchronize(0)
        meet.wait()
        if me.rank == 1:
            return "never comes"
        x = me.device.array_of(np.ones(10, np.float32))
        job = me.executor.submit(me.request(Collective.ALLREDUCE, x, x))
        both.wait()
        if me.rank == 0:
            looks = iter([False] * 3)  # then as if Ctrl-C had come
            me.device.is_through, real = lambda event: next(looks), me.device.is_through
            with pytest.raises(StopIteration):
                job.wait()
            me.device.is_through = real
        with pytest.raises(AbortedError, match="rank 0 was interrupted in a collective"):
            job.wait()
        return "ended"

    assert run_devices(star_plan(3), body, machine=machine) == ["ended", "never comes", "ended"]
