"""A rank that is killed while it writes to the journal: the others go on, with one order."""

import json
import os
import signal
import subprocess
import sys

import pytest

from blinkrun.executors import native
from blinkrun.executors.rendezvous import make_memory

SIZE = 3
ARENA = native.ARENA_RESERVED + 4096
LETTERS = 400

RANK = f"""
import json, os, signal, sys, zlib
from test_journal_killed import LETTERS, join
from blinkrun.executors.journal import NativeJournal

rank, victim, *fds = map(int, sys.argv[1:])
journal = NativeJournal(join(rank, fds), 20.0)
print("here", flush=True)
sys.stdin.readline()
number, ends, ended, order = 0, 0, False, []
while ends < {SIZE} - 1:
    if number < LETTERS or rank == victim:  # the victim writes until it is killed
        body = bytes([number % 251]) * (number * 7919 % 60_001)
        journal.post(b"%d %d:" % (rank, number) + body)
        number += 1
    elif not ended and victim in journal.gone():
        journal.post(b"end")
        ended = True
    else:
        journal.wait(0.05, may_spin=False)
    if rank == victim and number == LETTERS // 2:
        print("in the middle", flush=True)
    for sender, message in journal.read():
        order.append((sender, zlib.crc32(message)))
        if message == b"end":
            ends += 1
            continue
        head, _, body = message.partition(b":")
        said, count = map(int, head.split())
        whole = len(body) == count * 7919 % 60_001 and set(body) <= {{count % 251}}
        assert said == sender and whole, (sender, head, len(body))
print(json.dumps([journal.gone(), zlib.crc32(repr(order).encode()), len(order)]), flush=True)
sys.stdin.readline()  # until all have seen who is gone
"""


def join(rank, fds):
    control, *arenas = fds
    return native.Group(
        rank=rank,
        names=list(range(SIZE)),
        control_fd=control,
        arena_fds=arenas,
        arena_bytes=ARENA,
        timeout_s=20.0,
        spins=0,
        yield_s=0.0005,
        chunk_bytes=4096,
        eager_bytes=0,
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_writer_leaves_whole_messages_in_one_order(victim):
    control = make_memory("control", native.control_bytes(SIZE, 0))
    native.format_control(control, SIZE, 0)
    fds = [control, *(make_memory("arena", ARENA) for _ in range(SIZE))]
    path = os.pathsep.join((os.path.dirname(__file__), *filter(None, sys.path)))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(victim), *map(str, fds)],
            pass_fds=fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        for rank in range(SIZE)
    ]
    others = [rank for number, rank in enumerate(ranks) if number != victim]
    try:
        assert [rank.stdout.readline() for rank in ranks] == ["here\n"] * SIZE
        for rank in ranks:
            rank.stdin.write("go\n")
            rank.stdin.flush()
        assert ranks[victim].stdout.readline() == "in the middle\n"
        ranks[victim].send_signal(signal.SIGKILL)
        ranks[victim].wait()
        answers = [json.loads(rank.stdout.readline()) for rank in others]
        assert answers[0] == answers[1]
        gone, _, count = answers[0]
        assert gone == [victim]
        assert count >= 2 * (LETTERS + 1) + LETTERS // 2
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdin.close()
            rank.stdout.close()
        for fd in fds:
            os.close(fd)
