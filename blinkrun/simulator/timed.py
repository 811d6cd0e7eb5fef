"""What the engine runs: channels in bytes, steps over numbered flags, pipes and streams."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from blinkrun.simulator.cost import Cost
from blinkrun.types import Rank


@dataclass(frozen=True, slots=True)
class TimedWait:
    """Hold the channel at chunk k until flag number `flag` is at least k + 1 - `lag`."""

    flag: int
    lag: int


@dataclass(frozen=True, slots=True)
class TimedSignal:
    """Set flag number `flag`."""

    flag: int


@dataclass(frozen=True, slots=True)
class TimedReduce:
    """Move a chunk over some pipes at once.

    Attributes
    ----------
    moves : tuple of (int, int)
        Pipe and link (index into ``Topology.links``) of every operand that crosses one.
    memory : int
        Pipe of the rank's own memory, -1 where that is as fast as needed.
    locals : int
        Operands in the rank's own memory.
    latency_ns : int
        Largest of its links; 0 without any.
    slowest : int
        The link that has it, -1 without any.
    """

    moves: tuple[tuple[int, int], ...]
    memory: int
    locals: int
    latency_ns: int
    slowest: int


@dataclass(frozen=True, slots=True)
class TimedPost:
    """Start a message: that end of stream number `stream`, at once."""

    stream: int
    is_send: bool


@dataclass(frozen=True, slots=True)
class TimedHold:
    """Hold the channel at chunk k until message k - `lag` of stream number `stream` is through."""

    stream: int
    lag: int


TimedStep = TimedWait | TimedSignal | TimedReduce | TimedPost | TimedHold


@dataclass(frozen=True, slots=True)
class TimedStream:
    """Messages from rank to rank of another host, one a chunk and one after the other.

    Attributes
    ----------
    name : str
        For messages.
    pipe, link : int
        What they cross; `link` is an index into ``Topology.links``.
    latency_ns : int
        After the last byte, until the message is through.
    """

    name: str
    pipe: int
    link: int
    latency_ns: int


@dataclass(frozen=True, slots=True)
class TimedChannel:
    """A channel with its bytes.

    Attributes
    ----------
    rank, number : int
        As in `verify_static.Lane`.
    steps : tuple of TimedStep
    size_bytes, chunk_bytes : int
        Of the part and of its chunks; the first and the last may be smaller.
    num_chunks : int
        0 for an empty part: the channel ends at once.
    prologue : bool
    late_ns : int
        How much later than others it starts: `Cost.peer_switch_ns` where it needs that.
    skip_bytes : int
        What the first chunk lacks.
    """

    rank: Rank
    number: int
    steps: tuple[TimedStep, ...]
    size_bytes: int
    chunk_bytes: int
    num_chunks: int
    prologue: bool = False
    late_ns: int = 0
    skip_bytes: int = 0

    def bytes_of(self, chunk: int) -> int:
        """Return how large that chunk is."""
        start = chunk * self.chunk_bytes - self.skip_bytes
        return min(self.size_bytes, start + self.chunk_bytes) - max(0, start)

    def at(self, step: int, chunk: int) -> str:
        """Return where that step is, for messages."""
        kind = "prologue channel" if self.prologue else "channel"
        return f"rank {self.rank}, {kind} {self.number}, step {step}, chunk {chunk}"


@dataclass(frozen=True, slots=True)
class Load:
    """All that the engine needs.

    Attributes
    ----------
    channels : tuple of TimedChannel
        Prologues first.
    pipes : tuple of tuple of int
        Resources that each takes.
    resources : tuple of str
        Names: those of the topology, then a memory per rank where it counts.
    capacities : tuple of int
        Of the resources, in units.
    flags_per_rank : int
        Flag number f is flag ``f % flags_per_rank`` of rank ``f // flags_per_rank``.
    cost : Cost
    streams : tuple of TimedStream
    units : int
        In an MB/s.
    """

    channels: tuple[TimedChannel, ...]
    pipes: tuple[tuple[int, ...], ...]
    resources: tuple[str, ...]
    capacities: tuple[int, ...]
    flags_per_rank: int
    cost: Cost
    streams: tuple[TimedStream, ...] = ()
    units: int = 1

    @property
    def num_flags(self) -> int:
        """Flags of all ranks: one more than the highest number."""
        used = (
            step.flag
            for channel in self.channels
            for step in channel.steps
            if isinstance(step, (TimedWait, TimedSignal))
        )
        return 1 + max(used, default=-1)

    @property
    def senders(self) -> list[tuple[int, int]]:
        """Who sends the messages of every stream: channel and step, -1 where nobody does."""
        found = [(-1, -1)] * len(self.streams)
        for number, channel in enumerate(self.channels):
            for at, step in enumerate(channel.steps):
                if isinstance(step, TimedPost) and step.is_send:
                    found[step.stream] = number, at
        return found

    def flag_name(self, flag: int) -> str:
        """Return a flag by its rank, for messages."""
        rank, number = divmod(flag, max(1, self.flags_per_rank))
        return f"flag {number} of rank {rank}"

    def bytes_by_pipe(self) -> tuple[int, ...]:
        """Return what must cross each pipe, from the program alone."""
        total: Counter[int] = Counter()
        for channel in self.channels:
            for step in channel.steps:
                if isinstance(step, TimedReduce):
                    total.update({step.memory: step.locals * channel.size_bytes})
                    for pipe, _ in step.moves:
                        total[pipe] += channel.size_bytes
                elif isinstance(step, TimedPost) and step.is_send:
                    total[self.streams[step.stream].pipe] += channel.size_bytes
        return tuple(total[pipe] for pipe in range(len(self.pipes)))
