"""Ranks as threads of this process, over the native core and without MPI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from blinkrun.comm.threads import thread_controls
from blinkrun.comm.world import World
from blinkrun.communicator import Communicator
from blinkrun.executors.cpu import CpuExecutor
from blinkrun.executors.emulation import Emulation
from blinkrun.planner.plan import Plan
from blinkrun.schedule.choice import Choices
from blinkrun.types import Collective, Rank

ARENA = 40 << 20


def run_threads(
    plan: Plan,
    body: Callable[[Communicator], Any],
    *,
    timeout_s: float = 20.0,
    chunk_bytes: int | None = None,
    eager_bytes: int | None = None,
    emulation: Emulation | None = None,
    choices: Mapping[tuple[Collective, Rank], Choices] | None = None,
) -> list[Any]:
    """Return what `body` returned on every rank; the first exception of any is raised."""
    size = plan.size
    controls = thread_controls(size, timeout_s)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def rank(number: int) -> None:
        try:
            executor = CpuExecutor(
                controls[number],
                range(size),
                plan,
                arena_bytes=ARENA,
                timeout_s=timeout_s,
                cores=1,
                emulation=emulation,
                choices=choices,
            )
            if chunk_bytes is not None:
                executor.group.set_chunk_bytes(chunk_bytes)
            if eager_bytes is not None:
                executor.group.set_eager_bytes(eager_bytes)
            world = World(number, size, ("host",) * size, (tuple(range(size)),))
            communicator = Communicator(controls[number], world, executor, 1)
            results[number] = body(communicator)
            communicator.close()
        except BaseException as err:  # shown by the test that called
            errors.append(err)
            controls[number].abort(1)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s + 20)
    if errors:
        raise errors[0]
    return results
