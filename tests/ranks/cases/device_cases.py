"""What each process does in test_device_ranks.py: a rank with a fake device, without MPI."""

import os
import signal
import time
import traceback

import numpy as np
from support.devices import joined
from support.fake_cuda import FakeMachine, fake_threads
from support.fake_streams import until
from support.programs import chain_plan, star_plan

import blinkrun
from blinkrun.comm.sockets import SocketControl
from blinkrun.errors import BlinkrunError
from blinkrun.types import Collective

LEFT = []
COUNTS = (0, 1, 1009, 4095, 30_011)


def main(case, rank, size, secret, answers, params):
    """Put (rank, what the case returned) where the parent looks."""
    try:
        answers.put((rank, globals()[case](rank, size, secret, **params)))
    except BaseException:
        answers.put((rank, traceback.format_exc()))
        raise


def _machine(rank, size, *, own=False, fault=None, **how):
    """The machine as this process sees it: all devices, or its own one, and which is the rank's."""
    machine = FakeMachine(size, visible=[rank] if own else None, seed=rank, **how)
    if fault is not None:
        machine.fail(**fault)
    return machine, machine.open_device(0 if own else rank, rank)


def _control(rank, size, secret):
    return SocketControl(secret, rank=rank, size=size, timeout_s=20)


def everything(rank, size, secret, **how):
    """What is wrong of some collectives, and what is left when all is closed."""
    machine, device = _machine(rank, size, **how)
    control = _control(rank, size, secret)
    wrong = []
    for plan in (star_plan(size), chain_plan(size)):
        with joined(control, plan, device, timeout_s=20) as me:
            for count in COUNTS:
                wrong += _sums(me, count) + _gathers(me, count)
    control.finalize()
    machine.close()
    until(lambda: not fake_threads(), "the end of streams' threads", 10)
    return wrong + machine.leaks(within_s=10)


def _sums(me, count):
    given = np.arange(count, dtype=np.int32) * (me.rank + 1)
    total = np.arange(count, dtype=np.int32) * (me.size * (me.size + 1) // 2)
    wrong = []
    for place in (me.device.array, me.in_arena):
        x, out = place(count, np.int32), place(count, np.int32)
        x.numpy()[:] = given
        out.numpy()[:] = -1
        me.run(Collective.ALLREDUCE, x, out)
        me.run(Collective.ALLREDUCE, x, x)
        me.executor.synchronize(0)
        if not all(np.array_equal(each.numpy(), total) for each in (out, x)):
            wrong.append(f"allreduce of {count} in {place.__name__}")
    return wrong


def _gathers(me, count):
    x = me.device.array_of(np.full(count, me.rank, np.float32))
    out = me.device.array_of(np.full(count * me.size, -1, np.float32))
    back = me.device.array_of(np.full(count, -1, np.float32))
    me.run(Collective.ALLGATHER, x, out)
    me.run(Collective.REDUCESCATTER, out, back)
    me.executor.synchronize(0)
    right = np.array_equal(out.numpy(), np.repeat(np.arange(me.size, dtype=np.float32), count))
    right = right and (back.numpy() == me.rank * me.size).all()
    return [] if right else [f"allgather and reducescatter of {count}"]


def one_is_killed(rank, size, secret, replay=False):
    """What the others see: seconds and words of the call, or replay, that rank 1 never makes."""
    machine, device = _machine(rank, size)
    try:
        control = _control(rank, size, secret)
        with joined(control, star_plan(size), device, timeout_s=20) as me:
            x, stream = me.device.array_of(np.ones(100_003, np.float32)), me.device.new_stream()
            me.run(Collective.ALLREDUCE, x, x, stream=stream)
            me.executor.synchronize(stream)
            me.device.begin_capture(stream)
            me.run(Collective.ALLREDUCE, x, x, stream=stream)
            graph = me.device.end_capture(stream)
            control.allgather(None)  # all have captured
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            begun = time.monotonic()
            try:
                if replay:
                    me.device.launch_graph(graph, stream)
                else:
                    me.run(Collective.ALLREDUCE, x, x, stream=stream)
                me.executor.synchronize(stream)
            except BlinkrunError as err:
                seen = [time.monotonic() - begun, str(err)]
            me.device.free_stream(stream)
    finally:
        machine.close()
    return [*seen, machine.leaks(within_s=10)]


def one_is_refused(rank, size, secret, call, reason):
    """What every rank is told when a call of the runtime fails on rank 1 while they join."""
    machine, device = _machine(rank, size)
    if rank == 1:
        machine.fail(call, reason=reason)
    try:
        with joined(_control(rank, size, secret), star_plan(size), device, timeout_s=20) as me:
            return [*_sums(me, 1009), "joined"]
    except BlinkrunError as err:
        return [type(err).__name__, str(err), machine.leaks(within_s=10)]
    finally:
        machine.close()


def calls_of_a_job(own):
    """What is wrong of the calls that a program makes, and what is left at its end."""
    blinkrun.init()
    world = blinkrun.world()
    machine, device = _machine(world.rank, world.size, own=own)
    machine.install()
    wrong = []
    for count in COUNTS[1:]:
        x = device.array_of(np.full(count, world.rank + 1.0, np.float32))
        out = device.array(count, np.float32)
        world.allreduce(x, out=out)
        everyone = device.array((world.size, count), np.float32)
        world.allgather(out, out=everyone)
        world.synchronize()
        total = world.size * (world.size + 1) / 2
        if not (out.numpy() == total).all() or not (everyone.numpy() == total).all():
            wrong.append(count)
    x = device.array_of(np.full(10, world.rank, np.int64))
    world.allreduce_async(x, out=x).synchronize()
    wrong += [] if (x.numpy() == sum(range(world.size))).all() else ["async"]
    blinkrun.shutdown()
    machine.close()
    until(lambda: not fake_threads(), "the end of streams' threads", 10)
    return wrong + machine.leaks(within_s=10)


def one_just_ends(rank, size, secret, how):
    """Leave all as it is; what Python does at its end must not hang, nor end the process badly."""
    machine, device = _machine(rank, size)
    context = joined(_control(rank, size, secret), star_plan(size), device, timeout_s=4)
    me = context.__enter__()
    LEFT.extend((machine, context, me))
    _sums(me, 1009)
    x = me.device.array_of(np.ones(100_003, np.float32))
    if how == "under way" and rank == 0:  # a call that rank 1 never makes
        me.run(Collective.ALLREDUCE, x, x)
    return "done"
