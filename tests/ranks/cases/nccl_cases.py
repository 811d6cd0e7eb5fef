"""What each process does in test_nccl_processes.py: started by multiprocessing, without MPI."""

import os
import signal
import sys
import threading
import time
import traceback

import numpy as np

from blinkrun import nccl
from blinkrun.nccl import NcclCommunicator, NcclError, groupEnd, groupStart


def main(case, unique_id, rank, size, answers):
    """Put (rank, what the case returned) where the parent looks."""
    try:
        answers.put((rank, globals()[case](unique_id, rank, size)))
    except BaseException:
        answers.put((rank, traceback.format_exc()))
        raise


def where(array):
    return array.ctypes.data


def everything(unique_id, rank, size):
    """Sums, a ring of sends, a split; the number of wrong elements."""
    wrong = 0
    comm = NcclCommunicator(size, unique_id, rank)
    for count in (0, 1, 509, 100_003):
        x, total = np.full(count, rank + 1, np.float32), np.empty(count, np.float32)
        comm.allReduce(where(x), where(total), count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)
        wrong += int((total != size * (size + 1) / 2).sum())
        got = np.empty(count, np.float32)
        groupStart()
        comm.send(where(x), count, nccl.NCCL_FLOAT32, (rank + 1) % size, 0)
        comm.recv(where(got), count, nccl.NCCL_FLOAT32, (rank - 1) % size, 0)
        groupEnd()
        wrong += int((got != (rank - 1) % size + 1).sum())
    part = comm.commSplit(rank % 2, 0)
    both = np.full(3, rank, np.int64)
    part.allReduce(where(both), where(both), 3, nccl.NCCL_INT64, nccl.NCCL_SUM, 0)
    wrong += int((both != sum(range(rank % 2, size, 2))).sum())
    comm.check_async_error()
    part.destroy()
    comm.destroy()
    return [wrong, "mpi4py" in sys.modules]


def one_is_killed(unique_id, rank, size):
    """What the others see: without a call, and in one."""
    comm = NcclCommunicator(size, unique_id, rank)
    x = np.ones(4)
    comm.allReduce(where(x), where(x), 4, nccl.NCCL_DOUBLE, nccl.NCCL_SUM, 0)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    seen = []
    deadline = time.monotonic() + 10
    while not seen and time.monotonic() < deadline:
        try:
            comm.check_async_error()
            time.sleep(0.01)
        except NcclError as err:
            seen.append([err.status, err.detail])
    try:
        comm.recv(where(x), 4, nccl.NCCL_DOUBLE, 1, 0)
    except NcclError as err:
        seen.append([err.status, err.detail])
    return seen


def one_is_killed_in_a_message(unique_id, rank, size):
    """A sender dies when part of its message is in the ring; the part is no message."""
    comm = NcclCommunicator(size, unique_id, rank)
    x = np.ones(1 << 20)
    if rank == 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        comm.send(where(x), x.size, nccl.NCCL_DOUBLE, 0, 0)
    time_left = time.monotonic() + 10
    while 1 not in comm._communicator.executor.group.gone() and time.monotonic() < time_left:
        time.sleep(0.01)
    try:
        comm.recv(where(x), x.size, nccl.NCCL_DOUBLE, 1, 0)
    except NcclError as err:
        return [err.status, err.detail]
    return "no error"


def one_disagrees(unique_id, rank, size):
    """The errors of ranks of which one counts another number."""
    try:
        NcclCommunicator(size + (rank == 1), unique_id, rank)
    except NcclError as err:
        return [err.status, err.detail]
    return "no error"
