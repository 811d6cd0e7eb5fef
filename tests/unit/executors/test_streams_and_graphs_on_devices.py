"""Calls on fake devices in the order of streams: nothing waits on the host, graphs replay them."""

import threading
import time

import numpy as np
import pytest
from support.devices import run_devices
from support.fake_cuda import FakeMachine
from support.programs import chain_plan, star_plan

from blinkrun.errors import BlinkrunError
from blinkrun.types import Collective, Op

COUNT = 5003


def filled(me, value):
    return me.device.array_of(np.full(COUNT, value, np.float32))


def test_a_call_returns_before_what_is_in_its_stream():
    """The host never waits: all streams are held while the calls are made."""

    def body(me):
        x, out = filled(me, me.rank + 1), filled(me, 0)
        me.run(Collective.ALLREDUCE, x, out)  # programs are loaded by the first call
        me.executor.synchronize(0)
        stream = me.device.new_stream()
        with me.device.hold(stream):
            me.device.memset(x.pointer, 0, x.nbytes, stream)
            for _ in range(3):
                me.run(Collective.ALLREDUCE, x, x, stream=stream)
            before = out.numpy()[0]
        me.run(Collective.ALLREDUCE, x, out, stream=stream)
        me.executor.synchronize(stream)
        return before, out.numpy().tolist() == [0] * COUNT

    assert run_devices(star_plan(2), body) == [(3.0, True)] * 2


def test_calls_on_several_streams_keep_their_order():
    """Every call reads what the one before it wrote, on another stream."""

    def body(me):
        streams = [me.device.new_stream() for _ in range(3)]
        x = filled(me, 1)
        event = me.device.new_event()
        for turn in range(9):
            stream = streams[turn % 3]
            me.device.wait(stream, event)
            me.run(Collective.ALLREDUCE, x, x, stream=stream)
            me.device.record(event, stream)
        me.executor.synchronize(streams[8 % 3])
        for stream in streams:
            me.device.synchronize(stream)
            me.device.free_stream(stream)
        me.device.free_event(event)
        return np.unique(x.numpy()).tolist()

    assert run_devices(chain_plan(3), body) == [[3.0**9]] * 3


def test_many_calls_one_after_the_other():
    """Small and large ones, by several programs, with nobody waiting between them."""
    counts = [1, 40, COUNT, 3, 20_000, 2]

    def body(me):
        arrays = [me.device.array_of(np.full(count, 1, np.int64)) for count in counts]
        inside = [me.in_arena(count, np.int64) for count in counts]
        stream = me.device.new_stream()
        for _ in range(20):
            for x, y in zip(arrays, inside, strict=True):
                me.run(Collective.ALLREDUCE, x, y, stream=stream)
                me.run(Collective.ALLREDUCE, y, x, Op.AVERAGE, stream=stream)
        me.executor.synchronize(stream)
        return [np.unique(array.numpy()).tolist() for array in arrays]

    assert run_devices(chain_plan(3), body) == [[[3**20]] * len(counts)] * 3


def test_calls_on_streams_without_an_order_of_their_own():
    """The executor keeps the calls apart, on every rank in the order in which they were made."""

    def body(me):
        streams = [me.device.new_stream() for _ in range(4)]
        arrays = [filled(me, number + me.rank) for number in range(12)]
        for number, array in enumerate(arrays):
            stream = streams[(number + me.rank) % 4]
            me.run(Collective.ALLREDUCE, array, array, Op.MAX, stream=stream)
        for stream in streams:
            me.executor.synchronize(stream)
        return [np.unique(array.numpy()).tolist() for array in arrays]

    assert run_devices(star_plan(3), body) == [[[number + 2.0] for number in range(12)]] * 3


def test_a_stream_at_the_address_of_one_that_was_destroyed():
    """Streams are known by their addresses, and the runtime gives those out again."""

    def body(me):
        x, out = filled(me, 1), filled(me, 0)
        stream, other = me.device.new_stream(), me.device.new_stream()
        me.run(Collective.ALLREDUCE, x, x, stream=stream)
        me.executor.synchronize(stream)
        streams = me.device.chip.streams
        with me.device.hold(stream):
            me.run(Collective.ALLREDUCE, x, x, stream=stream)
            streams[stream], streams[other] = streams[other], streams[stream]
            me.run(Collective.ALLREDUCE, x, out, stream=stream)
        me.executor.synchronize(stream)
        return np.unique(out.numpy()).tolist()

    assert run_devices(star_plan(2), body) == [[8.0]] * 2


@pytest.mark.parametrize("count", [7, COUNT, 40_000])
def test_a_graph_replays_calls(count):
    meet = threading.Barrier(2)  # while one rank captures, no other of the process may wait

    def body(me):
        x = me.device.array_of(np.ones(count, np.float32))
        out = me.in_arena(count, np.float32)
        stream = me.device.new_stream()
        me.run(Collective.ALLREDUCE, x, out, stream=stream)
        me.run(Collective.BROADCAST, out if me.rank == 0 else None, out, stream=stream)
        me.executor.synchronize(stream)
        meet.wait(20)
        me.device.begin_capture(stream)
        me.run(Collective.ALLREDUCE, x, out, stream=stream)
        me.run(Collective.ALLREDUCE, out, x, stream=stream)
        graph = me.device.end_capture(stream)
        meet.wait(20)
        seen = []
        for turn in range(3):
            x.numpy()[:] = turn + 1
            me.device.launch_graph(graph, stream)
            me.executor.synchronize(stream)
            seen.append(np.unique(x.numpy()).tolist())
            me.run(Collective.ALLREDUCE, x, out, stream=stream)  # calls and replays in turns
            me.executor.synchronize(stream)
        return seen

    assert run_devices(star_plan(2), body) == [[[4.0], [8.0], [12.0]]] * 2


def test_the_first_call_of_its_kind_is_refused_in_a_capture():
    meet = threading.Barrier(2)

    def body(me):
        x = filled(me, 1)
        stream = me.device.new_stream()
        meet.wait(20)
        me.device.begin_capture(stream)
        with pytest.raises(BlinkrunError, match="captur"):
            me.run(Collective.ALLTOALL, x[:4], filled(me, 0)[:4], stream=stream)
        me.device.end_capture(stream)
        meet.wait(20)
        me.run(Collective.ALLREDUCE, x, x, stream=stream)
        me.executor.synchronize(stream)
        return np.unique(x.numpy()).tolist()

    assert run_devices(star_plan(2), body) == [[2.0]] * 2


def test_jobs_run_beside_the_callers_stream():
    def body(me):
        x, out = filled(me, me.rank), filled(me, -1)
        stream = me.device.new_stream()
        me.device.copy(out.pointer, x.pointer, x.nbytes, stream)
        job = me.executor.submit(me.request(Collective.ALLREDUCE, x, out, stream=stream))
        after = filled(me, -1)
        other = me.device.new_stream()
        job.wait_on(other)
        me.device.copy(after.pointer, out.pointer, out.nbytes, other)
        me.device.synchronize(other)
        job.wait()
        assert job.done()
        return np.unique(after.numpy()).tolist()

    assert run_devices(star_plan(3), body) == [[3.0]] * 3


def test_a_job_is_not_done_before_what_its_call_comes_after():
    def body(me):
        x = filled(me, 1)
        me.run(Collective.ALLREDUCE, x, x)
        me.executor.synchronize(0)
        stream = me.device.new_stream()
        with me.device.hold(stream):
            job = me.executor.submit(me.request(Collective.ALLREDUCE, x, x, stream=stream))
            early = job.done()
        job.wait()
        return early, np.unique(x.numpy()).tolist()

    assert run_devices(star_plan(2), body) == [(False, [4.0])] * 2


def test_several_groups_on_the_same_devices():
    """Each rank has three executors; their calls run on streams of their own, at the same time."""
    machine = FakeMachine(2, seed=3, most_blocks=32)
    results = [None] * 3

    def group(number):
        def body(me):
            stream = me.device.new_stream()
            x = filled(me, number + me.rank)
            for _ in range(5):
                me.run(Collective.ALLREDUCE, x, x, Op.MAX, stream=stream)
                me.run(Collective.ALLREDUCE, x, x, stream=stream)
            me.executor.synchronize(stream)
            return np.unique(x.numpy()).tolist()

        results[number] = run_devices(star_plan(2), body, machine=machine, blocks=4)

    threads = [threading.Thread(target=group, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    machine.close()
    assert results == [[[(number + 1) * 32.0]] * 2 for number in range(3)]


def test_a_call_costs_the_host_little():
    """The best of some batches of 4 KB calls into a held stream; the other rank is quiet meanwhile.

    15 us is what it may take on a machine that does nothing else; this one may be busy.
    """
    turns = [threading.Event(), threading.Event()]
    turns[0].set()
    batches, calls = 10, 50

    def body(me):
        x, out = me.device.array(1024, np.float32), me.device.array(1024, np.float32)
        stream = me.device.new_stream()
        request = me.request(Collective.ALLREDUCE, x, out, stream=stream)
        me.executor.run(request)
        me.executor.synchronize(stream)
        assert turns[me.rank].wait(20)
        took_s = []
        with me.device.hold(stream):
            for _ in range(batches):
                begun = time.perf_counter()
                for _ in range(calls):
                    me.executor.run(request)
                took_s.append((time.perf_counter() - begun) / calls)
        turns[1 - me.rank].set()
        me.executor.synchronize(stream)
        return min(took_s) * 1e6

    took_us = min(run_devices(star_plan(2), body))
    print(f"allreduce of 4 KB on a fake device: {took_us:.1f} us of the host for each call")
    assert took_us < 60
