"""Simulation: runs a program over a topology on a virtual clock, in whole nanoseconds.

Every channel is a thread block of its own, as in the executors. What a step moves are transfers;
between two events every transfer has a constant, max-min fair rate (`sharing`), so all that can
happen next is that a transfer comes through, a step has waited long enough, or nothing at all.
`loop` has the events.
"""

from __future__ import annotations

from fractions import Fraction

from blinkrun.schedule.ir import Part, Program
from blinkrun.simulator.conserve import Account
from blinkrun.simulator.cost import OURS, Cost
from blinkrun.simulator.load import load
from blinkrun.simulator.loop import Engine
from blinkrun.simulator.record import Record
from blinkrun.simulator.run import Run, Usage
from blinkrun.simulator.timed import Load
from blinkrun.topology.graph import Topology

__all__ = ["Engine", "simulate", "usage_of"]


def simulate(  # noqa: PLR0913 - all that a run depends on
    program: Program,
    topology: Topology,
    *,
    size_bytes: int,
    itemsize: int = 4,
    chunk_bytes: int = 0,
    cost: Cost = OURS,
    trace: bool = False,
) -> Run:
    """Return how long `program` takes over `topology`, and what every resource does meanwhile.

    Prologues run first; then all ranks enter, which takes ``cost.launch_ns``; then all channels
    run at once. A reduce step takes ``cost.step_ns``; then each operand in another rank's memory
    is a transfer that holds every resource of its link, and those in the rank's own memory
    together one transfer of the rank's memory; the step is through the largest latency of its
    links after the last of them. Waits and signals take no time. A message between hosts sets out
    ``cost.message_ns`` after both its ends were started, follows the one before it, and is through
    the latency of its link after its last byte. Transfers in flight share
    resources max-min fair. Nothing is rounded but ends of transfers, up to the next nanosecond.

    Parameters
    ----------
    program : Program
        As the executors run it.
    topology : Topology
        Its ranks are the program's; in MB/s, or kB/s as slow networks are counted.
    size_bytes : int
        Of the collective, as nccl-tests counts them: all blocks of allgather, reducescatter and
        alltoall together. Rounded down to whole elements.
    itemsize : int, default 4
        Bytes of an element.
    chunk_bytes : int, default 0
        Into which the parts of a pipelined program are cut; 0: parts are one chunk.
    cost : Cost, default `OURS`
    trace : bool, default False
        Whether to keep every transfer, and the critical path.

    Raises
    ------
    UsageError
        If the size or the chunk is negative, or the topology does not count MB/s.
    ProgramError
        If the program needs links or ranks that the topology lacks, or waits for ever.
    SimulationError
        If bytes are lost or time runs backwards: a fault of the simulator.

    Examples
    --------
    A broadcast of 1 MB over a link of 1 GB/s:

    >>> from blinkrun.schedule.lower import lower
    >>> from blinkrun.planner.make import make_plan
    >>> from blinkrun.simulator.cost import FREE
    >>> from blinkrun.topology.graph import Link, LinkKind, Resource
    >>> from blinkrun.types import Collective
    >>> links = (Link(0, 1, ("a",), LinkKind.NVLINK), Link(1, 0, ("b",), LinkKind.NVLINK))
    >>> pair = Topology("pair", (0, 1), links, (Resource("a", 1000), Resource("b", 1000)), "MB/s")
    >>> program = lower(make_plan(pair), Collective.BROADCAST)
    >>> simulate(program, pair, size_bytes=10**6, cost=FREE).time_ns
    1000000
    """
    loaded = load(
        program,
        topology,
        size_bytes=size_bytes,
        itemsize=itemsize,
        chunk_bytes=chunk_bytes,
        cost=cost,
    )
    engine = Engine(loaded, Record() if trace else None)
    engine.run()
    record = engine.record
    return Run(
        collective=program.collective,
        program=program.name,
        num_ranks=program.size,
        size_bytes=size_bytes,
        chunk_bytes=chunk_bytes if program.pipelined and not program.eager else 0,
        time_ns=engine.now_ns,
        usage=usage_of(loaded, engine.account(), len(topology.resources)),
        transfers=record.transfers(loaded, topology) if record else (),
        critical=record.critical(loaded, engine.now_ns) if record else (),
        steps=record.step_times(loaded) if record else (),
        ends_ns=_ends(program, engine),
    )


def _ends(program: Program, engine: Engine) -> tuple[tuple[Part, int], ...]:
    """Return when the last channel of each part, and its last message, were through."""
    ends: dict[Part, int] = {}
    for timed, end_ns in engine.ends():
        if not timed.prologue:
            part = program.ranks[timed.rank].channels[timed.number].part
            ends[part] = max(ends.get(part, 0), end_ns)
    return tuple(sorted(ends.items(), key=lambda entry: (entry[0].start, entry[0].stop)))


def usage_of(loaded: Load, account: Account, num_resources: int) -> tuple[Usage, ...]:
    """Return what the topology's resources did, which come before the ranks' memories."""
    capacities = [
        capacity if loaded.units == 1 else Fraction(capacity, loaded.units)
        for capacity in loaded.capacities
    ]
    columns = (loaded.resources, capacities, account.crossed(loaded), account.busy_ns)
    return tuple(map(Usage, *(column[:num_resources] for column in columns)))
