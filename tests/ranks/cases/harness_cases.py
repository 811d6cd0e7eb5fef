"""What ranks do in the tests of the harness itself."""

import os
import sys
import time

from mpi4py import MPI


def rank_and(value: int) -> list[int]:
    world = MPI.COMM_WORLD
    return [world.rank, world.size, value, world.allreduce(value)]


def one_raises() -> None:
    if MPI.COMM_WORLD.rank == 1:
        raise RuntimeError("the case went wrong")
    MPI.COMM_WORLD.Barrier()


def one_hangs(seconds: float) -> None:
    print(f"rank {MPI.COMM_WORLD.rank} is here")
    sys.stdout.flush()
    if MPI.COMM_WORLD.rank == 1:
        time.sleep(seconds)
    MPI.COMM_WORLD.Barrier()


def environ(name: str) -> str | None:
    return os.environ.get(name)
