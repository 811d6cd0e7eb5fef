"""A rank that is killed in the middle of a paced call ends the others at once."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support.paced import both_ways, wires

from blinkrun.executors import native
from blinkrun.executors.emulation import Emulation
from blinkrun.executors.rendezvous import make_memory

SIZE = 3
ARENA = native.ARENA_RESERVED + (1 << 20)
NUM_BYTES = 1 << 20  # a second at 1 MB/s
TOPOLOGY = wires(SIZE, both_ways([(0, 1), (1, 2)]), mb_per_s=1)

RANK = f"""
import sys
from support.programs import chain, packing
from test_killed_while_paced import NUM_BYTES, join, routes
from blinkrun.executors import native
from blinkrun.schedule.encode import encode
from blinkrun.schedule.lower import lower_packing
from blinkrun.types import Collective

rank, *fds = map(int, sys.argv[1:])
group = join(rank, fds)
program = lower_packing(packing([chain({SIZE}, 0)]), Collective.BROADCAST)
group.load(encode(program, rank, routes()), chunk_bytes=4096)
x = group.empty(NUM_BYTES)
print("here", flush=True)
try:
    group.run(int(Collective.BROADCAST), 0, 0, 0, x.ctypes.data, x.ctypes.data, NUM_BYTES, 1.0, 1.0)
except native.Failure as failure:
    print(failure.args[1], flush=True)
"""


def routes():
    return Emulation(TOPOLOGY, 1).routes


def join(rank, fds):
    emulation = Emulation(TOPOLOGY, 1)
    control, *arenas = fds
    return native.Group(
        rank=rank,
        names=list(range(SIZE)),
        control_fd=control,
        arena_fds=[fd if emulation.reaches(rank, at) else -1 for at, fd in enumerate(arenas)],
        arena_bytes=ARENA,
        timeout_s=20.0,
        spins=0,
        yield_s=0.0,
        chunk_bytes=4096,
        eager_bytes=0,
        links=[list(link) for link in emulation.links],
        rates=list(emulation.bytes_per_s),
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("victim", [1, 2])
def test_a_killed_rank_ends_the_paced_call_of_the_others(victim):
    resources = len(TOPOLOGY.resources)
    control = make_memory("control", native.control_bytes(SIZE, resources))
    native.format_control(control, SIZE, resources)
    fds = [control, *(make_memory("arena", ARENA) for _ in range(SIZE))]
    path = os.pathsep.join(path for path in sys.path if path)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), *map(str, fds)],
            pass_fds=fds,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((os.path.dirname(__file__), path))},
        )
        for rank in range(SIZE)
    ]
    try:
        assert [rank.stdout.readline() for rank in ranks] == ["here\n"] * SIZE
        ranks[victim].send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        words = [rank.communicate(timeout=15)[0] for rank in ranks if rank is not ranks[victim]]
        assert time.monotonic() - killed_at < 10  # far less than the timeout of 20 s
        assert all(f"rank {victim} has died while rank" in word for word in words), words
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
        for fd in fds:
            os.close(fd)
