"""The fastest program for a size: which trees, how many channels of them, which chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from blinkrun.cli.simulate_options import LEAST_CHUNK_BYTES, SimulateOptions
from blinkrun.cli.simulate_scene import Scene
from blinkrun.cli.simulate_trees import Bound, Packed, packed
from blinkrun.errors import UsageError
from blinkrun.planner.plan import PlannedPacking
from blinkrun.planner.rings import RingPeer, ring_peer
from blinkrun.schedule.ir import Addressing, Program
from blinkrun.schedule.lower import lower_alltoall, lower_packing
from blinkrun.schedule.peer import PeerProgram, ring_programs
from blinkrun.schedule.routes import Routes
from blinkrun.schedule.verify import verify
from blinkrun.select.candidates import Candidate
from blinkrun.simulator.engine import simulate
from blinkrun.simulator.run import Run
from blinkrun.topology.graph import Topology
from blinkrun.topology.hosts import through_one_gpu
from blinkrun.types import Collective

MOST_CHUNKS = 1 << 16
DIRECT = "direct"
_CHUNKS = (64, 256, 1024)  # in how many the data is cut
_LEAST_CHUNK = 1 << 14
_CHANNELS = (1, 4)


@dataclass(frozen=True, slots=True)
class Found:
    """A simulated program.

    Attributes
    ----------
    name : str
        Of its trees or rings, for people.
    program : Program
    topology : Topology
    run : Run
    is_ring : bool
    packing : PlannedPacking or None
        None for rings and for alltoall.
    channels : int
        Of each tree.
    """

    name: str
    program: Program
    topology: Topology
    run: Run
    is_ring: bool = False
    packing: PlannedPacking | None = None
    channels: int = 1


@dataclass(slots=True)
class Search:
    """The programs of a scene: each is made once, and verified before a run of it is shown."""

    scene: Scene
    options: SimulateOptions
    _packed: Packed = field(init=False)
    _programs: dict[tuple[str, int], Program] = field(default_factory=dict)
    _right: set[int] = field(default_factory=set)
    _peers: tuple[PeerProgram, ...] = ()

    def __post_init__(self) -> None:
        self._packed = packed(self.scene, self.options.trees)
        if self.options.against is not None and self.ring_peer().rings:
            scene = self.scene
            lane = scene.lane_mb_per_s or None
            self._peers = ring_programs(scene.rings, scene.collective, scene.root, lane=lane)

    @property
    def bound(self) -> Bound:
        """What no schedule over these links exceeds."""
        return self._packed.bound

    def ring_peer(self) -> RingPeer:
        """Return the rings that a library finds."""
        scene = self.scene
        root = scene.root if scene.flow.is_rooted else None
        topology = through_one_gpu(scene.rings)
        return ring_peer(topology, scene.flow, root, lane=scene.lane_mb_per_s or None)

    def fastest(self, size_bytes: int) -> Found:
        """Return the trees, channels and chunks with the least time, the first of equals."""
        if self.scene.collective is Collective.ALLTOALL:
            return self._verified(self._direct(size_bytes))
        best: Found | None = None
        for candidate in self._packed.candidates:
            least_ns = self._least_ns(candidate, size_bytes)
            for channels, chunk in self._ways(candidate, size_bytes):
                if best is not None and best.run.time_ns <= least_ns:
                    break
                found = self._trees(candidate, channels, chunk, size_bytes)
                if best is None or found.run.time_ns < best.run.time_ns:
                    best = found
        assert best is not None  # there are always trees
        return self._verified(best)

    def ring(self, size_bytes: int) -> Found | None:
        """Return the fastest of what a ring library may do; None where there is no ring."""
        cost = self.scene.ring_cost
        tried = [
            Found(
                peer.name,
                peer.program,
                peer.topology,
                simulate(
                    peer.program,
                    peer.topology,
                    size_bytes=size_bytes,
                    chunk_bytes=peer.chunk_bytes_of(size_bytes),
                    cost=cost,
                ),
                is_ring=True,
                channels=peer.channels,
            )
            for peer in self._peers
        ]
        if not tried:
            return None
        return self._verified(min(tried, key=lambda found: found.run.time_ns))

    def again(self, found: Found) -> Found:
        """Return the same once more, with all transfers and the critical path."""
        run = simulate(
            found.program,
            found.topology,
            size_bytes=found.run.size_bytes,
            chunk_bytes=found.run.chunk_bytes,
            cost=self.scene.ring_cost if found.is_ring else self.scene.cost,
            trace=True,
        )
        return replace(found, run=run)

    def _least_ns(self, candidate: Candidate, size_bytes: int) -> Fraction:
        """Return what these trees take at least: their shares at the packing's rate."""
        return self.scene.cost.launch_ns + size_bytes * 1000 / candidate.packing.rate

    def _ways(self, candidate: Candidate, size_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield the numbers of channels and the chunks to try."""
        asked = self.options.chunk_bytes
        if asked is not None:
            _check_chunk(asked, size_bytes)
        for channels in (self.options.channels,) if self.options.channels else _CHANNELS:
            if asked is not None or not self._program(candidate, channels).pipelined:
                yield channels, asked or 0
                continue
            for chunks in _CHUNKS:
                chunk = max(size_bytes // chunks, _LEAST_CHUNK)
                yield channels, chunk // LEAST_CHUNK_BYTES * LEAST_CHUNK_BYTES
                if chunk == _LEAST_CHUNK:
                    break

    def _program(self, candidate: Candidate, channels: int) -> Program:
        key = (candidate.trees, channels)
        if key not in self._programs:
            self._programs[key] = lower_packing(
                candidate.packing,
                self.scene.collective,
                root=self.scene.root,
                channels_per_tree=channels,
            )
        return self._programs[key]

    def _trees(
        self, candidate: Candidate, channels: int, chunk_bytes: int, size_bytes: int
    ) -> Found:
        program = self._program(candidate, channels)
        run = simulate(
            program,
            self.scene.topology,
            size_bytes=size_bytes,
            chunk_bytes=chunk_bytes,
            cost=self.scene.cost,
        )
        return Found(
            candidate.trees,
            program,
            self.scene.topology,
            run,
            packing=candidate.packing,
            channels=channels,
        )

    def _direct(self, size_bytes: int) -> Found:
        topology = self.scene.topology
        program = lower_alltoall(topology.size, Addressing.DIRECT)
        run = simulate(program, topology, size_bytes=size_bytes, cost=self.scene.cost)
        return Found(DIRECT, program, topology, run)

    def _verified(self, found: Found) -> Found:
        """Return `found` if its program is right over its links.

        Raises
        ------
        ProgramError
            If it is not.
        """
        if id(found.program) not in self._right:
            verify(found.program, links=Routes(found.topology).pairs())
            self._right.add(id(found.program))
        return found


def _check_chunk(chunk_bytes: int, size_bytes: int) -> None:
    """Raise UsageError if a size would be cut into more chunks than can be waited for."""
    chunks = -(-size_bytes // chunk_bytes)
    if chunks > MOST_CHUNKS:
        raise UsageError(
            f"--chunk {chunk_bytes}: {size_bytes} bytes are {chunks} chunks, more than "
            f"{MOST_CHUNKS}; take at least {-(-size_bytes // MOST_CHUNKS)}"
        )
