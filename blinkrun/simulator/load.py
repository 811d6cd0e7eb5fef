"""A program made ready to be timed: its channels in bytes, over the pipes of a topology."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from blinkrun.errors import ProgramError, UsageError
from blinkrun.schedule.chunking import Chunks, chunks_of
from blinkrun.schedule.ir import Message, Part, Program, Recv, Reduce, Send, Signal, Step, Wait
from blinkrun.schedule.routes import Routes
from blinkrun.schedule.streams import Stream, stream_of
from blinkrun.schedule.verify_static import Lane, lanes
from blinkrun.simulator.cost import Cost
from blinkrun.simulator.timed import (
    Load,
    TimedChannel,
    TimedHold,
    TimedPost,
    TimedReduce,
    TimedSignal,
    TimedStep,
    TimedStream,
    TimedWait,
)
from blinkrun.topology.graph import LinkKind, Resource, Topology
from blinkrun.topology.hosts import FINE_UNIT, units_per_mb_per_s
from blinkrun.topology.model import MB_PER_S
from blinkrun.types import Rank


class Loader:
    """Finds pipes and capacities for the steps of a program; pipes are numbered as they are met.

    Parameters
    ----------
    topology : Topology
        In MB/s or kB/s.
    cost : Cost
    num_ranks : int
        With a memory.
    flags_per_rank : int
    """

    def __init__(
        self, topology: Topology, cost: Cost, *, num_ranks: int, flags_per_rank: int
    ) -> None:
        if topology.unit not in (MB_PER_S, FINE_UNIT):
            raise UsageError(
                f"{topology.name} counts in {topology.unit}; a simulation needs links in {MB_PER_S}"
            )
        self._units = units_per_mb_per_s(topology)
        self._topology = topology
        self._cost = cost
        self._flags = flags_per_rank
        self._routes = Routes(topology)
        self._resources = [part.name for part in topology.resources]
        self._place = {name: at for at, name in enumerate(self._resources)}
        self._capacities = [capacity_of(part, cost) for part in topology.resources]
        if cost.memory_mb_per_s:
            self._resources += [f"memory of rank {rank}" for rank in range(num_ranks)]
            self._capacities += [cost.memory_mb_per_s * self._units] * num_ranks
        self._pipes: dict[tuple[int, ...], int] = {}
        self._streams: dict[Stream, tuple[int, TimedStream]] = {}
        self._joined = fabric_pairs(topology)

    @property
    def streams(self) -> dict[Stream, TimedStream]:
        """All streams that were met, in the order of their numbers."""
        return {stream: timed for stream, (_, timed) in self._streams.items()}

    def channel(self, lane: Lane, chunks: Chunks, itemsize: int) -> TimedChannel:
        """Return a channel with its bytes and pipes."""
        steps = tuple(self._step(step, lane.rank) for step in lane.channel.steps)
        switches = self._cost.peer_switch_ns and any(map(self._switches, steps))
        return TimedChannel(
            lane.rank,
            lane.number,
            steps,
            size_bytes=(chunks.hi - chunks.lo) * itemsize,
            chunk_bytes=chunks.chunk_elements * itemsize,
            num_chunks=chunks.num_chunks,
            prologue=lane.prologue,
            late_ns=self._cost.peer_switch_ns if switches else 0,
            skip_bytes=chunks.skip * itemsize,
        )

    def done(self, channels: Iterable[TimedChannel]) -> Load:
        """Return the channels with all that was found for them."""
        timed = tuple(channels)
        return Load(
            channels=timed,
            pipes=tuple(self._pipes),
            resources=tuple(self._resources),
            capacities=tuple(self._capacities),
            flags_per_rank=self._flags,
            cost=self._cost,
            streams=tuple(self.streams.values()),
            units=self._units,
        )

    def _step(self, step: Step, rank: Rank) -> TimedStep:
        match step:
            case Wait(peer, flag, lag):
                return TimedWait(peer * self._flags + flag, lag)
            case Signal(flag):
                return TimedSignal(rank * self._flags + flag)
            case Reduce():
                return self._reduce(step, rank)
        return self._message(step, rank)

    def _message(self, step: Message, rank: Rank) -> TimedStep:
        number = self._stream(stream_of(rank, step))
        if isinstance(step, (Send, Recv)):
            return TimedPost(number, isinstance(step, Send))
        return TimedHold(number, step.lag)

    def _stream(self, stream: Stream) -> int:
        if stream not in self._streams:
            link = self._routes.link(stream.src, stream.dst)
            latency_ns = self._cost.latency_ns(self._topology.links[link].kind)
            timed = TimedStream(f"{stream}", self._link_pipe(link), link, latency_ns)
            self._streams[stream] = len(self._streams), timed
        return self._streams[stream][0]

    def _reduce(self, step: Reduce, rank: Rank) -> TimedReduce:
        links = self._routes.of(step, rank)
        latencies = [self._cost.latency_ns(self._topology.links[link].kind) for link in links]
        latency = max(latencies, default=0)
        return TimedReduce(
            moves=tuple((self._link_pipe(link), link) for link in links),
            memory=self._memory_pipe(rank),
            locals=len(step.dsts) + len(step.srcs) - len(links),
            latency_ns=latency,
            slowest=links[latencies.index(latency)] if links else -1,
        )

    def _pipe(self, resources: tuple[int, ...]) -> int:
        return self._pipes.setdefault(resources, len(self._pipes))

    def _link_pipe(self, link: int) -> int:
        names = self._topology.links[link].resources
        return self._pipe(tuple(sorted(self._place[name] for name in names)))

    def _memory_pipe(self, rank: Rank) -> int:
        """Return the pipe of a rank's own memory, -1 where it does not count."""
        if not self._cost.memory_mb_per_s:
            return -1
        return self._pipe((len(self._topology.resources) + rank,))

    def _switches(self, step: TimedStep) -> bool:
        """Return whether a step reaches over PCIe for what a fabric joins."""
        if not isinstance(step, TimedReduce):
            return False
        links = [self._topology.links[link] for _, link in step.moves]
        return any(
            link.kind is LinkKind.PCIE and frozenset((link.src, link.dst)) in self._joined
            for link in links
        )


def fabric_pairs(topology: Topology) -> frozenset[frozenset[Rank]]:
    """Return the pairs of ranks that NVLink or the like joins."""
    return frozenset(
        frozenset((link.src, link.dst)) for link in topology.links if link.kind.is_fabric
    )


def capacity_of(resource: Resource, cost: Cost) -> int:
    """Return what the library gets of a resource, in whole units of its capacity.

    Raises
    ------
    UsageError
        If that is less than 1.
    """
    got = int(resource.capacity * cost.efficiency)
    if got < 1:
        raise UsageError(
            f"{resource.name}: {cost.efficiency} of {resource.capacity} is less than 1"
        )
    return got


def check_call(size_bytes: int, itemsize: int, chunk_bytes: int) -> None:
    """Raise UsageError if no call can have such sizes."""
    if size_bytes < 0 or chunk_bytes < 0 or itemsize < 1:
        raise UsageError(
            f"cannot move {size_bytes} bytes in chunks of {chunk_bytes}, {itemsize} an element"
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """How a call's bytes fall into parts and chunks."""

    shares: int
    count: int
    itemsize: int
    chunk_elements: int  # 0: a part is one chunk

    @classmethod
    def of(cls, program: Program, size_bytes: int, itemsize: int, chunk_bytes: int) -> Cut:
        """Return the cut of a collective of `size_bytes`, as nccl-tests counts them.

        Raises
        ------
        UsageError
            As `check_call` does.
        """
        check_call(size_bytes, itemsize, chunk_bytes)
        count = size_bytes // max(program.input_blocks, program.output_blocks) // itemsize
        is_cut = program.pipelined and not program.eager and chunk_bytes > 0
        return cls(program.shares, count, itemsize, max(1, chunk_bytes // itemsize) * is_cut)

    def chunks(self, part: Part) -> Chunks:
        """Return a part's elements and chunks."""
        return chunks_of(part, self.shares, self.count, self.itemsize, self.chunk_elements)


def load(  # noqa: PLR0913 - all that a run depends on
    program: Program,
    topology: Topology,
    *,
    size_bytes: int,
    itemsize: int,
    chunk_bytes: int,
    cost: Cost,
) -> Load:
    """Return `program` over `topology`, cut for `size_bytes`; see `simulate`.

    Raises
    ------
    UsageError
        If the size or the chunk is negative, or the topology does not count MB/s.
    ProgramError
        If the program needs links or ranks that the topology lacks.
    """
    cut = Cut.of(program, size_bytes, itemsize, chunk_bytes)
    if program.size != topology.size:
        raise ProgramError(f"{topology.name} has {topology.size} ranks, the program {program.size}")
    loader = Loader(topology, cost, num_ranks=program.size, flags_per_rank=program.flags)
    return loader.done(
        loader.channel(lane, cut.chunks(lane.channel.part), itemsize) for lane in lanes(program)
    )
