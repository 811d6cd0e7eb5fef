"""One rank of `gpu_check` as a process of its own: ``python -m blinkrun.bench.gpu_check_worker``.

It reads what to do from its standard input, as JSON, and writes what came of it to a file.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from blinkrun.comm.sockets import SocketControl
from blinkrun.env import GPUS_PER_RANK

OPENER = "blinkrun.executors.cuda:open_device"
_MODULE = "blinkrun.bench.gpu_check_worker"


def named(path: str) -> Callable[..., Any]:
    """Return the function at ``module:name``.

    >>> named("math:sqrt")(9)
    3.0
    """
    module, _, name = path.partition(":")
    return cast(Callable[..., Any], getattr(importlib.import_module(module), name))


def run_processes(size: int, job: Mapping[str, Any], *, deadline_s: float) -> list[dict[str, Any]]:
    """Return what each of `size` processes made of `job`.

    Parameters
    ----------
    size : int
        How many; all on device 0.
    job : mapping
        ``run``: ``module:function``, called with the control plane and the job; and what it needs.
    deadline_s : float
        When all must have ended, in seconds; they are killed then.

    Raises
    ------
    RuntimeError
        If one ended badly or not in time; with the last of what it said.
    """
    secret = os.urandom(16).hex()
    environ = {**os.environ, GPUS_PER_RANK: f"1/{size}"}
    deadline = time.monotonic() + deadline_s
    with tempfile.TemporaryDirectory(prefix="blinkrun-") as name:
        folder = Path(name)
        started: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(size):
                place = {"rank": rank, "size": size, "secret": secret, "timeout_s": deadline_s}
                given = folder / f"{rank}.job"
                given.write_text(json.dumps({**job, **place, "out": f"{folder / str(rank)}.json"}))
                with given.open("rb") as source, (folder / f"{rank}.log").open("wb") as log:
                    started.append(
                        subprocess.Popen(
                            [sys.executable, "-m", _MODULE],
                            stdin=source,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            env=environ,
                        )
                    )
            for process in started:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(deadline - time.monotonic(), 0.1))
        finally:
            codes = [process.poll() for process in started]
            for process in started:
                process.kill()
                process.wait()
        for rank, code in enumerate(codes):
            if code != 0:
                said = (folder / f"{rank}.log").read_text(errors="replace").strip()
                how = "not through in time" if code is None else f"exit code {code}"
                raise RuntimeError(f"process of rank {rank}: {how}: {said[-2000:]}")
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def compare(control: SocketControl, job: Mapping[str, Any]) -> dict[str, Any]:
    """Make calls on memory that other processes have opened; say how many elements are wrong."""
    from blinkrun.bench import gpu_check_cases as cases  # noqa: PLC0415 - needs numpy and more
    from blinkrun.bench.gpu_check_ranks import device_plan, joined  # noqa: PLC0415

    opener = named(job["opener"])
    size, sizes = control.size, job["sizes"]
    plan = device_plan(opener, size)
    chosen = [each for each in cases.cases(size, sizes=sizes) if not each.seed % job["every"]]
    everything = [
        (case, inputs, cases.expected(plan, case, inputs))
        for case, inputs in ((case, case.inputs(size)) for case in chosen)
    ]
    arena_bytes = job["arena_bytes"]
    with joined(control, plan, opener, timeout_s=job["timeout_s"], arena_bytes=arena_bytes) as me:
        room = cases.Room.of(me, cases.room_bytes(size, sizes))
        compared, wrong = cases.check_cases(me, everything, room)
    return {"cases": len(chosen), "compared": compared, "wrong": dict(wrong)}


def main() -> int:
    """Be one rank."""
    job = json.load(sys.stdin)
    control = SocketControl(
        bytes.fromhex(job["secret"]),
        rank=job["rank"],
        size=job["size"],
        timeout_s=job["timeout_s"],
    )
    result = named(job["run"])(control, job)
    Path(job["out"]).write_text(json.dumps(result))
    control.finalize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
