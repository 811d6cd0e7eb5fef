"""Failures of fake devices: every rank ends with one line that says what, in its deadline."""

import os
import select
import signal
import time

import numpy as np
import pytest
from support.devices import run_devices
from support.fake_cuda import FakeMachine, fake_threads
from support.fake_streams import until
from support.programs import chain_plan, star_plan

from blinkrun.errors import (
    AbortedError,
    BlinkrunError,
    CollectiveError,
    CollectiveTimeoutError,
    DeviceError,
    ForkedError,
    MismatchError,
)
from blinkrun.types import Collective, Op

JOINING = [
    "cudaMalloc",
    "cudaHostAlloc",
    "cudaMemsetAsync",
    "cudaMemcpyAsync",
    "cudaStreamCreateWithPriority",
    "cudaStreamSynchronize",
    "cudaEventCreateWithFlags",
]


@pytest.fixture
def machine():
    machine = FakeMachine(3, seed=2)
    yield machine
    machine.close()
    until(lambda: not fake_threads(), "the end of streams' threads", 10)


def reduce_once(me):
    x = me.device.array_of(np.full(1000, me.rank + 1, np.float32))
    me.run(Collective.ALLREDUCE, x, x)
    me.executor.synchronize(0)
    return x.numpy()[0]


def test_host_memory_that_cannot_be_pinned_ends_all():
    """Where devices do not reach each other."""
    machine = FakeMachine(2, cut=[(0, 1)])
    machine.fail("cudaHostRegister", rank=1, reason="operation not supported")
    for err in run_devices(star_plan(2), reduce_once, machine=machine, catch=True):
        assert isinstance(err, BlinkrunError)
        assert "rank 1" in str(err)
        assert "cudaHostRegister" in str(err)
    assert machine.leaks() == []
    machine.close()


def test_a_slow_device_holds_nobody_up_for_ever(machine):
    machine.delay_s = 0.2
    assert run_devices(star_plan(3), reduce_once, machine=machine, timeout_s=5.0) == [6.0] * 3


@pytest.mark.parametrize("call", JOINING)
def test_what_fails_on_one_rank_while_they_join_ends_all(machine, call):
    machine.fail(call, rank=1, reason="out of memory" if "lloc" in call else "unknown error")
    begun = time.monotonic()
    errors = run_devices(star_plan(3), reduce_once, machine=machine, catch=True)
    assert time.monotonic() - begun < 15
    assert all(isinstance(err, BlinkrunError) for err in errors), errors
    assert isinstance(errors[1], DeviceError)
    for err in errors:
        assert "\n" not in str(err)
        assert "rank 1" in str(err)
        assert call in str(err) or "out of memory" in str(err) or "memory" in str(err)
    assert machine.leaks() == []


def test_calls_that_differ_are_told_and_the_next_one_works():
    def body(me):
        x = me.device.array_of(np.ones(100 + me.rank, np.float32))
        stream = me.device.new_stream()
        me.run(Collective.ALLREDUCE, x, x, stream=stream)
        with pytest.raises(MismatchError) as told:
            me.executor.synchronize(stream)
        assert (x.numpy() == 1).all()  # nothing has moved
        me.run(Collective.ALLREDUCE, x[:100], x[:100], stream=stream)
        me.executor.synchronize(stream)
        return str(told.value), x.numpy()[0]

    for text, value in run_devices(star_plan(2), body):
        assert "100" in text
        assert "101" in text
        assert value == 2


def test_operations_that_differ_are_told():
    def body(me):
        x = me.device.array_of(np.ones(9, np.int32))
        me.run(Collective.ALLREDUCE, x, x, Op.SUM if me.rank else Op.MAX)
        me.executor.synchronize(0)

    for error in run_devices(chain_plan(3), body, catch=True):
        assert isinstance(error, MismatchError)


def test_a_rank_that_never_comes_is_named_within_the_deadline(machine):
    def body(me):
        if me.rank != 1:
            return reduce_once(me)
        until(me.host.group.aborted, "the others' end", 15)
        me.executor.check()
        return None

    begun = time.monotonic()
    errors = run_devices(star_plan(3), body, machine=machine, timeout_s=2.0, catch=True)
    assert time.monotonic() - begun < 10
    assert all(isinstance(err, CollectiveError) for err in errors), errors
    timed_out = [err for err in errors if isinstance(err, CollectiveTimeoutError)]
    assert timed_out
    assert all("rank 1" in str(err) for err in timed_out)
    assert machine.leaks() == []


def test_an_abort_of_the_job_ends_kernels(machine):
    def body(me):
        if me.rank:
            return reduce_once(me)
        me.host.group.abort("rank 0 has had enough")
        me.executor.check()
        return None

    begun = time.monotonic()
    errors = run_devices(star_plan(3), body, machine=machine, catch=True)
    assert time.monotonic() - begun < 10
    assert all(isinstance(err, AbortedError) for err in errors), errors
    assert all("has had enough" in str(err) for err in errors)
    assert machine.leaks() == []


@pytest.mark.parametrize("call", ["cuLaunchKernel", "cudaEventRecord", "cudaStreamWaitEvent"])
def test_a_call_that_fails_is_raised_there_and_ends_the_others(machine, call):
    def body(me):
        x = me.device.array_of(np.ones(1000, np.float32))
        streams = [0, me.device.new_stream()]
        for stream in (*streams, *streams):
            me.run(Collective.ALLREDUCE, x, x, stream=stream)
        for stream in streams:
            me.executor.synchronize(stream)
        if me.rank == 1:
            machine.fail(call, rank=1)
        for stream in (*streams, *streams):
            me.run(Collective.ALLREDUCE, x, x, stream=stream)
        for stream in streams:
            me.executor.synchronize(stream)

    begun = time.monotonic()
    errors = run_devices(star_plan(3), body, machine=machine, timeout_s=5.0, catch=True)
    assert time.monotonic() - begun < 20
    assert isinstance(errors[1], DeviceError)
    assert str(errors[1]).startswith("rank 1: device 1: " + call) or call in str(errors[1])
    for err in errors:
        assert isinstance(err, BlinkrunError)
        assert "rank 1" in str(err)


def test_a_device_that_breaks_under_a_kernel_is_told(machine):
    """An illegal access makes every later call on the device fail, as CUDA does."""

    def body(me):
        reduce_once(me)
        x = me.device.array_of(np.ones(10, np.float32))
        if me.rank == 1:
            gone = me.device.malloc(4096)
            me.device.free(gone)
            x = me.device.array_of(np.ones(10, np.float32))
            x.pointer = gone
        me.run(Collective.ALLREDUCE, x, x)
        me.executor.synchronize(0)

    errors = run_devices(star_plan(3), body, machine=machine, timeout_s=2.0, catch=True)
    assert isinstance(errors[1], DeviceError)
    assert "illegal memory access" in str(errors[1])
    assert all(isinstance(err, BlinkrunError) for err in errors)


def test_refused_ipc_does_not_matter_within_a_process():
    machine = FakeMachine(2, ipc=False)
    assert run_devices(star_plan(2), reduce_once, machine=machine) == [3.0] * 2
    assert machine.leaks() == []
    machine.close()


@pytest.mark.parametrize("plan", [star_plan, chain_plan])
def test_closed_executors_leave_nothing(machine, plan):
    for _ in range(2):
        assert run_devices(plan(3), reduce_once, machine=machine) == [6.0] * 3
        assert machine.leaks() == []


def said_by_a_child(calls):
    """What a forked child gets of each call, a line each; it has 10 s."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        for call in calls:
            try:
                call()
                said = "nothing"
            except BaseException as err:
                said = f"{type(err).__name__}: {err}"
            os.write(writing, f"{said}\n".encode())
        os._exit(0)
    os.close(writing)
    text, deadline = b"", time.monotonic() + 10
    while select.select([reading], [], [], max(deadline - time.monotonic(), 0))[0]:
        more = os.read(reading, 4096)
        if not more:
            break
        text += more
    os.close(reading)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return text.decode().splitlines()


def test_a_forked_child_is_refused_and_the_rank_goes_on(machine):
    """Also while other threads hold the locks that the child has inherited."""

    def body(me):
        x = me.device.array_of(np.ones(1000, np.float32))
        request = me.request(Collective.ALLREDUCE, x, x)
        job = me.executor.submit(request)
        job.wait()
        again = me.executor.prepared(request), x.pointer, x.pointer, (x,), 0
        calls = [
            lambda: me.executor.run(request),
            lambda: me.executor.prepared(request),
            lambda: me.executor.again(*again),
            lambda: me.executor.submit(request),
            lambda: me.executor.synchronize(0),
            job.wait,
            me.executor.close,
        ]
        said = None
        if me.rank == 0:
            with me.executor._lock:
                said = said_by_a_child(calls[:-1])
            said += said_by_a_child(calls[-1:])
        me.run(Collective.ALLREDUCE, x, x)
        me.executor.synchronize(0)
        return said, x.numpy()[0]

    found = run_devices(star_plan(2), body, machine=machine)
    assert [value for _, value in found] == [4.0, 4.0]
    assert found[0][0] == [f"ForkedError: {ForkedError(0)}"] * 6 + ["nothing"]
    assert machine.leaks() == []
