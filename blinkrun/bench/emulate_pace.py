"""Whether this machine is quick enough to pace an emulated one; measured before ranks start.

The programs run once in threads of this process, which stand for the ranks: the same executor, the
same copies, calendars and waits, over links so fast that only this machine holds them up. What
that takes, the emulation takes at least; links must take so much longer that ranks mostly sleep.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from fractions import Fraction

from blinkrun.bench.emulate_job import Call, EmulatedJob, Way
from blinkrun.bench.libraries import Blinkrun
from blinkrun.bench.work import fill
from blinkrun.comm.threads import ThreadControl, thread_controls
from blinkrun.comm.world import World
from blinkrun.communicator import Communicator
from blinkrun.errors import UsageError
from blinkrun.executors import native
from blinkrun.executors.cpu import CpuExecutor
from blinkrun.executors.emulation import Emulation
from blinkrun.planner.plan import Plan
from blinkrun.simulator.cost import EMULATED
from blinkrun.units import format_size

# By how much links must be slower than this machine, so that ranks mostly sleep: measured, calls
# come through within a tenth of the simulated time from there on.
MARGIN = Fraction(3, 2)
LARGEST_BYTES = 16 << 20  # that every thread has of memory
TRIES = 5  # the quickest counts: others use the machine too
TIMEOUT_S = 30.0
ARENA_BYTES = native.ARENA_RESERVED + 3 * LARGEST_BYTES  # what is given, what is got, and rounding


def check_pace(job: EmulatedJob, plan: Plan) -> None:
    """Raise UsageError, with the scale that would do, if this machine is too slow for `job`.

    One size is tried, the largest that needs no more than 16 MiB: the smaller a call, the more its
    start and its end weigh, which is no question of pace.

    Parameters
    ----------
    job : EmulatedJob
    plan : Plan
        Of its topology.
    """
    small = [call for call in job.calls if call.size_bytes <= LARGEST_BYTES]
    if not small:
        return
    call = max(small, key=lambda one: one.size_bytes)
    ways = job.ways(call, job.ring_programs())
    quickest = shortest_ns(job, call, ways, plan)
    scales = [
        scale_for(
            job.scale, least_ns=least_ns, links_ns=max(1, way.simulated_ns - EMULATED.launch_ns)
        )
        for way, least_ns in zip(ways, quickest, strict=True)
    ]
    worst = scales.index(max(scales))
    if scales[worst] > job.scale:
        raise UsageError(
            f"this machine cannot pace {job.topology.name} at --scale {job.scale}:"
            f" {format_size(call.size_bytes)} keep it busy for {quickest[worst] / 1e6:.1f} ms, and"
            f" links at that scale need only {ways[worst].simulated_ns / 1e6:.1f} ms;"
            f" try --scale {scales[worst]}"
        )


def scale_for(scale: int, *, least_ns: int, links_ns: int) -> int:
    """Return the scale at which links take `MARGIN` times what this machine does.

    Parameters
    ----------
    scale : int
        At which the links take `links_ns`.
    least_ns : int
        What this machine takes over any links.
    links_ns : int

    Returns
    -------
    int
        Not less than `scale`; rounded up to two digits otherwise.

    Examples
    --------
    >>> scale_for(1000, least_ns=20, links_ns=40), scale_for(100, least_ns=20, links_ns=9)
    (1000, 340)
    """
    if least_ns * MARGIN <= links_ns:
        return scale
    needed = math.ceil(scale * least_ns * MARGIN / links_ns)
    unit: int = 10 ** max(0, len(str(needed)) - 2)
    return math.ceil(Fraction(needed, unit)) * unit


def shortest_ns(job: EmulatedJob, call: Call, ways: Sequence[Way], plan: Plan) -> list[int]:
    """Return what each way of a call takes over the machine's own links, in nanoseconds.

    These are faster than any processes here, so that is what this machine takes by itself.
    """
    times = _on_threads(
        Emulation(job.topology, scale=1), plan, lambda one: _times(job, call, ways, one)
    )
    return [
        min(max(rank[at][turn] for rank in times) for turn in range(TRIES))
        for at in range(len(ways))
    ]


def _times(
    job: EmulatedJob, call: Call, ways: Sequence[Way], world: Communicator
) -> list[list[int]]:
    """Return this rank's times of every way, in nanoseconds."""
    library = Blinkrun(world, "arena")
    work = job.work(call)
    buffers = library.make_buffers(work)
    do = library.make_call(work, buffers)
    fill(work, world.rank, buffers)  # memory is there before it is timed
    times: list[list[int]] = []
    for way in ways:
        world.executor.load_program(way.program, chunk_bytes=way.chunk_bytes)
        times.append([])
        for _ in range(TRIES):
            world.barrier()
            do()
            times[-1].append(world.executor.group.last_ns())
    return times


def _on_threads(
    emulation: Emulation, plan: Plan, body: Callable[[Communicator], list[list[int]]]
) -> list[list[list[int]]]:
    """Return what `body` gives in each of the threads that stand for the ranks."""
    size = plan.size
    controls = thread_controls(size, TIMEOUT_S)
    results: dict[int, list[list[int]]] = {}
    errors: list[BaseException] = []

    def rank(control: ThreadControl) -> None:
        try:
            executor = CpuExecutor(
                control,
                range(size),
                plan,
                arena_bytes=ARENA_BYTES,
                timeout_s=TIMEOUT_S,
                cores=len(os.sched_getaffinity(0)),
                emulation=emulation,
            )
            world = World(control.rank, size, ("",) * size, (tuple(range(size)),))
            communicator = Communicator(control, world, executor, 1)
            results[control.rank] = body(communicator)
            communicator.close()
        except Exception as err:  # raised again below, in the thread that asked
            errors.append(err)
            control.abort(1)

    threads = [threading.Thread(target=rank, args=(one,), daemon=True) for one in controls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(size)]
