"""What a simulated run gives, as values: time, transfers, the use of every resource."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from blinkrun.schedule.ir import Part
from blinkrun.types import Collective, Rank


@dataclass(frozen=True, slots=True)
class Transfer:
    """One operand of one step on its way over a link.

    Attributes
    ----------
    rank, channel, step, chunk : int
        Which step of the program moved it: `rank` carries it out, `step` counts in its channel.
    src, dst : Rank
        From whose memory to whose.
    link : int
        Index into ``Topology.links``.
    size_bytes : int
    start_ns, end_ns : int
        While it held the link's resources; the latency comes after.
    """

    rank: Rank
    channel: int
    step: int
    chunk: int
    src: Rank
    dst: Rank
    link: int
    size_bytes: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What a resource of the topology did.

    Attributes
    ----------
    name : str
    capacity_mb_per_s : int or Fraction
        What the library's kernels get of it: the topology's capacity times `Cost.efficiency`,
        rounded down.
    size_bytes : int
        All that crossed it.
    busy_ns : int
        While at least one transfer held it.
    """

    name: str
    capacity_mb_per_s: int | Fraction
    size_bytes: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class Run:
    """A simulated call.

    Attributes
    ----------
    collective : Collective
    program : str
        Name of the program.
    num_ranks : int
    size_bytes : int
        Of the collective, as nccl-tests counts them (`blinkrun.bench.work.Work`).
    chunk_bytes : int
        0 where parts were not cut.
    time_ns : int
        From the call to the end of the last rank's last channel.
    usage : tuple of Usage
        By name; every resource of the topology.
    transfers : tuple of Transfer
        By start, if they were asked for, else empty.
    critical : tuple of Critical
        What the time is made of, from the start to the end without a gap; empty unless transfers
        were asked for.
    steps : tuple of StepTime
        When the reduce steps of every channel ran, by their ends; empty unless transfers were asked
        for.
    ends_ns : tuple of (Part, int)
        When the last channel of each part of a block was through, in the order of the parts.
    """

    collective: Collective
    program: str
    num_ranks: int
    size_bytes: int
    chunk_bytes: int
    time_ns: int
    usage: tuple[Usage, ...]
    transfers: tuple[Transfer, ...] = ()
    critical: tuple[Critical, ...] = ()
    steps: tuple[StepTime, ...] = ()
    ends_ns: tuple[tuple[Part, int], ...] = ()

    @property
    def algbw_gb_per_s(self) -> Fraction:
        """Bytes of the collective per ns."""
        return Fraction(self.size_bytes, max(1, self.time_ns))

    @property
    def busbw_gb_per_s(self) -> Fraction:
        """As nccl-tests defines it: what every link of equal links would carry."""
        n = self.num_ranks
        factor = {
            Collective.ALLREDUCE: Fraction(2 * (n - 1), n),
            Collective.ALLGATHER: Fraction(n - 1, n),
            Collective.REDUCESCATTER: Fraction(n - 1, n),
            Collective.ALLTOALL: Fraction(n - 1, n),
        }
        return self.algbw_gb_per_s * factor.get(self.collective, Fraction(1))

    def utilisation(self, usage: Usage) -> Fraction:
        """Return the part of the run's time that a resource was busy."""
        return Fraction(usage.busy_ns, max(1, self.time_ns))


@dataclass(frozen=True, slots=True)
class Critical:
    """A stretch of the critical path: what the run could not have ended sooner without.

    Attributes
    ----------
    what : str
        ``launch``, ``switch``, ``step``, ``transfer``, ``memory`` or ``latency``.
    rank, channel, step, chunk : int
        Whose; -1 for the launch.
    link : int
        Of a transfer or a latency, else -1.
    start_ns, end_ns : int
    """

    what: str
    rank: Rank
    channel: int
    step: int
    chunk: int
    link: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """When a rank carried out a reduce step of one chunk.

    Attributes
    ----------
    rank, channel, step, chunk : int
    is_prologue : bool
        Whether `channel` counts the rank's prologue.
    begin_ns, move_ns, land_ns, end_ns : int
        The channel came to the step; its bytes began to move; the last of them had; it was through.
    """

    rank: Rank
    channel: int
    step: int
    chunk: int
    is_prologue: bool
    begin_ns: int
    move_ns: int
    land_ns: int
    end_ns: int
