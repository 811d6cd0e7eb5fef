"""Ranks that reduce together, and then rank 1 leaves in the way that is asked for."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import blinkrun

LONG_S = 300.0


def leave(how: str) -> None:
    if how == "raise":
        raise ValueError("boom")
    if how == "exit3":
        sys.exit(3)
    if how == "exit0":
        sys.exit(0)
    if how == "os_exit0":
        os._exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "abort":
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(5)
    if how == "stop_inside":  # in the middle of the large calls below
        stopper = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSTOP))
        stopper.daemon = True
        stopper.start()
        return
    if how == "shutdown":
        blinkrun.shutdown()
    time.sleep(LONG_S)


blinkrun.init()
ones = np.ones(1000, dtype=np.float32)
print("sum", blinkrun.allreduce(ones)[0], flush=True)
Path(f"up.{blinkrun.rank()}").touch()
if sys.argv[1] == "cut":
    while not Path("go").exists():
        time.sleep(0.01)
    Path(f"waits.{blinkrun.rank()}").touch()
    print("sum", blinkrun.allreduce(ones)[0], flush=True)
elif sys.argv[1] != "ok":
    if blinkrun.rank() == 1:
        leave(sys.argv[1])
    large = np.ones(4_000_000, dtype=np.float32)
    while sys.argv[1] == "stop_inside":
        blinkrun.allreduce(large, out=large)
    blinkrun.allreduce(ones)
