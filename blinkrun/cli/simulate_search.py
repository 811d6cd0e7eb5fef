"""The fastest program for a size: which trees, how many channels of them, which chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from blinkrun.cli.simulate_options import LEAST_CHUNK_BYTES, SimulateOptions
from blinkrun.cli.simulate_scene import Scene
from blinkrun.cli.simulate_trees import Bound, Trees
from blinkrun.errors import UsageError
from blinkrun.planner.plan import PlannedPacking
from blinkrun.planner.rings import RingPeer, ring_peer
from blinkrun.planner.store import cached, command_cache_dir
from blinkrun.schedule.choice import Choice, Choices
from blinkrun.schedule.ir import Addressing, Program
from blinkrun.schedule.lower import lower_alltoall, lower_packing
from blinkrun.schedule.lower_hosts import lower_alltoall_hosts
from blinkrun.schedule.peer import SLICES_IN_FLIGHT, PeerProgram, ring_programs
from blinkrun.schedule.routes import Routes
from blinkrun.schedule.verify import verify
from blinkrun.select.predict import CHANNELS, SELECT_VERSION, best_run
from blinkrun.simulator.engine import simulate
from blinkrun.simulator.run import Run
from blinkrun.topology.graph import Topology
from blinkrun.topology.hosts import program_hosts, through_one_gpu
from blinkrun.types import Collective

MOST_CHUNKS = 1 << 16
DIRECT = "direct"
_CHUNKS = (64, 256, 1024)  # in how many the data is cut
_LEAST_CHUNK = 1 << 14


@dataclass(frozen=True, slots=True)
class Found:
    """A simulated program.

    Attributes
    ----------
    name : str
        Of its trees or rings, for people.
    run : Run
    num_trees, depth : int
        0 trees of depth 1 for alltoall; of rings both are 0.
    channels : int
        Of each tree, or of all rings.
    what : Timed or None
        None where one host was simulated for all.
    """

    name: str
    run: Run
    num_trees: int
    depth: int
    channels: int
    what: Timed | None = None


@dataclass(frozen=True, slots=True)
class Timed:
    """What was timed: a program over a topology, of trees or of rings."""

    program: Program
    topology: Topology
    is_ring: bool = False


@dataclass(slots=True)
class Search:
    """The programs of a scene: each is made once, and verified before a run of it is shown."""

    scene: Scene
    options: SimulateOptions
    _trees: Trees = field(init=False)
    _programs: dict[tuple[PlannedPacking | None, int], Program] = field(default_factory=dict)
    _right: dict[int, Program] = field(default_factory=dict)
    _peers: tuple[PeerProgram, ...] = ()

    def __post_init__(self) -> None:
        self._trees = Trees(self.scene, self.options.trees)
        if self.options.against is not None and self.ring_peer().rings:
            scene = self.scene
            lane = scene.lane_mb_per_s or None
            self._peers = tuple(
                peer
                for slices in SLICES_IN_FLIGHT
                for peer in ring_programs(
                    scene.rings, scene.collective, scene.root, lane=lane, slices=slices
                )
            )

    @property
    def bound(self) -> Bound:
        """What no schedule over these links exceeds."""
        return self._trees.bound

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
        fixed = self.options.chunk_bytes or self.options.channels
        choice = self._tried(size_bytes) if fixed else self._chosen(size_bytes)
        return self._verified(self._run(choice, size_bytes))

    def ring(self, size_bytes: int) -> Found | None:
        """Return the fastest of what a ring library may do; None where there is no ring."""
        tried = [self._peer(peer, size_bytes) for peer in self._peers]
        if not tried:
            return None
        return self._verified(min(tried, key=lambda found: found.run.time_ns))

    def again(self, found: Found) -> Found:
        """Return the same once more, with all transfers and the critical path."""
        run = found.run
        assert found.what is not None  # all that is found here is a program
        traced = self._timed(found.what, run.size_bytes, run.chunk_bytes, trace=True)
        return replace(found, run=traced)

    def _timed(
        self, what: Timed, size_bytes: int, chunk_bytes: int = 0, *, trace: bool = False
    ) -> Run:
        return simulate(
            what.program,
            what.topology,
            size_bytes=size_bytes,
            chunk_bytes=chunk_bytes,
            cost=self.scene.ring_cost if what.is_ring else self.scene.cost,
            trace=trace,
        )

    def _peer(self, peer: PeerProgram, size_bytes: int) -> Found:
        what = Timed(peer.program, peer.topology, is_ring=True)
        run = self._timed(what, size_bytes, peer.chunk_bytes_of(size_bytes))
        return Found(peer.name, run, 0, peer.depth, peer.channels, what)

    def _chosen(self, size_bytes: int) -> Choice:
        """Return the best choice, kept from an earlier run."""
        scene = self.scene

        def make() -> Choices:
            choice, _ = best_run(
                scene.topology,
                scene.collective,
                size_bytes=size_bytes,
                root=scene.root,
                cost=scene.cost,
                candidates=self._trees.candidates,
            )
            return Choices((choice,))

        key = (
            f"simulate {SELECT_VERSION} {self.options.trees} {scene.topology.content_hash} "
            f"{scene.collective.label} {scene.root} {size_bytes} {scene.cost!r}"
        )
        folder = command_cache_dir()
        kept = cached(folder, key, make, encode=Choices.to_json, decode=Choices.from_json)
        return kept.of(size_bytes)

    def _tried(self, size_bytes: int) -> Choice:
        """Return the best choice with the chunk or the channels that are asked for."""
        asked = self.options.channels
        tried = [
            Choice(None, one.trees, one.packing, chunk, channels)
            for one in self._trees.candidates
            for channels in ((asked,) if asked else CHANNELS)
            for chunk in self._chunks(size_bytes)
        ]
        return min(tried, key=lambda choice: self._run(choice, size_bytes).run.time_ns)

    def _chunks(self, size_bytes: int) -> Iterator[int]:
        asked = self.options.chunk_bytes
        if asked is not None:
            check_chunk(asked, size_bytes)
            yield asked
            return
        for chunks in _CHUNKS:
            chunk = max(size_bytes // chunks, _LEAST_CHUNK)
            yield chunk // LEAST_CHUNK_BYTES * LEAST_CHUNK_BYTES
            if chunk == _LEAST_CHUNK:
                return

    def _run(self, choice: Choice, size_bytes: int) -> Found:
        packing, channels = choice.packing, choice.channels_per_tree
        key = (packing, channels)
        if key not in self._programs:
            scene = self.scene
            self._programs[key] = lower_packing(
                packing,
                scene.collective,
                root=scene.root,
                channels_per_tree=channels,
                hosts=program_hosts(scene.topology),
            )
        what = Timed(self._programs[key], self.scene.topology)
        run = self._timed(what, size_bytes, choice.chunk_bytes)
        return Found(choice.trees, run, len(packing.trees), packing.depth, channels, what)

    def _direct(self, size_bytes: int) -> Found:
        if (None, 1) not in self._programs:
            hosts = program_hosts(self.scene.topology)
            program = (
                lower_alltoall_hosts(hosts, Addressing.DIRECT)
                if hosts
                else lower_alltoall(self.scene.topology.size, Addressing.DIRECT)
            )
            self._programs[None, 1] = program
        what = Timed(self._programs[None, 1], self.scene.topology)
        return Found(DIRECT, self._timed(what, size_bytes), 0, 1, 1, what)

    def _verified(self, found: Found) -> Found:
        """Return `found` if its program is right over its links.

        Raises
        ------
        ProgramError
            If it is not.
        """
        what = found.what
        if what is not None and id(what.program) not in self._right:
            verify(what.program, links=Routes(what.topology).pairs())
            self._right[id(what.program)] = what.program
        return found


def check_chunk(chunk_bytes: int, size_bytes: int) -> None:
    """Raise UsageError if a size would be cut into more chunks than can be waited for."""
    chunks = -(-size_bytes // chunk_bytes)
    if chunks > MOST_CHUNKS:
        raise UsageError(
            f"--chunk {chunk_bytes}: {size_bytes} bytes are {chunks} chunks, more than "
            f"{MOST_CHUNKS}; take at least {-(-size_bytes // MOST_CHUNKS)}"
        )
