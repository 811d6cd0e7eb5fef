"""What each rank does in test_hosts_messages.py; every function returns a JSON value."""

import random
import signal
import threading
import time

import numpy as np

import blinkrun
from blinkrun import runtime
from blinkrun.errors import (
    AbortedError,
    CollectiveTimeoutError,
    MismatchError,
    PeerLeftError,
)
from blinkrun.messages import Recv, Send

# In a head, just not in a head, several pieces of a pipe, more than is buffered.
SIZES = (0, 1, 4072, 4073, 70_001, 300_000, 1_500_001)


def _letter(src, dst, number, tag):
    """Return what `src` sends to `dst` as its message `number` of a tag."""
    start = src * 31 + dst * 17 + number * 5 + tag
    return (np.arange(start, start + SIZES[number], dtype=np.uint32) * 7).astype(np.uint8)


def _exchange(world, tag, seed):
    """Exchange every size with every rank, in some order; returns how many came wrong."""
    pairs, expected = [], []
    for peer in set(range(world.size)) - {world.rank}:
        for number in range(len(SIZES)):
            sent = _letter(world.rank, peer, number, tag)
            room = np.zeros_like(sent)
            pairs.append([Send(sent, peer, tag + number % 2), Recv(room, peer, tag + number % 2)])
            expected.append((room, _letter(peer, world.rank, number, tag)))
    rng = random.Random(seed)
    sends, recvs = ([pair[which] for pair in pairs] for which in (0, 1))
    messages = []
    while sends or recvs:  # those of one tag keep their order
        messages.append((rng.choice([each for each in (sends, recvs) if each])).pop(0))
    world.exchange(messages)
    return sum(not np.array_equal(room, letter) for room, letter in expected)


def interrupted_in_a_large_message():
    """One rank ends in the middle of a message in a group, and its memory goes; the world works."""
    blinkrun.init()
    world, group = blinkrun.world(), runtime.subgroup([0, 1])
    data = np.ones(1 << 28, np.uint8) if world.rank == 0 else np.empty(1 << 28, np.uint8)
    world.barrier()
    said = "it came"
    try:
        if world.rank == 0:
            group.send(data, 1)
        else:
            signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            group.recv(data, 0)
    except (KeyboardInterrupt, AbortedError) as err:
        said = type(err).__name__
    signal.setitimer(signal.ITIMER_REAL, 0)
    del data
    for _ in range(200):  # MPI works on, also on what it has begun
        total = float(world.allreduce(np.ones(5))[0])
    return [said, total]


def everything_at_once(threads):
    """Threads exchange messages of tags of their own beside a collective."""
    blinkrun.init()
    world = blinkrun.world()
    wrong = [None] * threads

    def work(thread):
        wrong[thread] = [
            _exchange(world, 100 * thread, seed=100 * world.rank + 10 * thread + turn)
            for turn in range(2)
        ]

    started = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for each in started:
        each.start()
    total = world.allreduce(np.ones(100_003, np.float32))
    for each in started:
        each.join()
    world.barrier()
    blinkrun.shutdown()
    return [wrong, bool((total == 3).all())]


def buffered():
    """The sender goes on before its message is wanted; it is kept for who wants its size."""
    blinkrun.init()
    world = blinkrun.world()
    said = []
    if world.rank == 0:
        data = np.full(200_000, 7, np.uint8)
        began = time.monotonic()
        world.send(data, 1, tag=5)
        said.append(time.monotonic() - began < 5.0)
        data[:] = 0
        world.barrier()
    else:
        world.barrier()  # nobody calls MPI for the sender from here on but its own thread
        while not world.arrived(0, tag=5):
            time.sleep(0.001)
        said.append(world.arrived(0, tag=6))
        try:
            world.recv(np.zeros(5, np.uint8), 0, tag=5)
        except MismatchError as err:
            said.append(str(err))
        room = np.zeros(200_000, np.uint8)
        world.recv(room, 0, tag=5)
        said.append(bool((room == 7).all()))
        said.append(world.arrived(0, tag=5))
    world.barrier()
    blinkrun.shutdown()
    return said


def nobody_sends(leaves):
    """Rank 0 waits for a message of rank 2, which is late or leaves; what each rank is told."""
    blinkrun.init(timeout_s=60.0 if leaves else 1.0)
    world = blinkrun.world()
    world.barrier()
    said = None
    if world.rank == 0:
        try:
            world.recv(np.zeros(5, np.uint8), 2, tag=9)
        except (CollectiveTimeoutError, PeerLeftError) as err:
            said = [type(err).__name__, str(err)]
    elif world.rank == 2 and not leaves:
        time.sleep(2.0)
    blinkrun.shutdown()
    return said
