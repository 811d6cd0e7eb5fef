"""From options to the job of an emulated machine: planned and simulated before ranks start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from blinkrun.bench.emulate_job import Call, EmulatedJob, Peer, Rings
from blinkrun.bench.emulate_options import EmulateOptions
from blinkrun.bench.work import num_blocks
from blinkrun.cli.subject import Subject, check_joined, check_ranks, subject_of
from blinkrun.errors import InternalError, UsageError
from blinkrun.planner.make import in_shares
from blinkrun.planner.packing import Flow
from blinkrun.planner.rings import ring_peer
from blinkrun.planner.solve import DEFAULT_LOSS, pack
from blinkrun.schedule.choice import Choice
from blinkrun.schedule.ir import Program
from blinkrun.schedule.lower import lower_packing
from blinkrun.schedule.peer import PeerProgram, ring_programs
from blinkrun.select.candidates import Candidate, candidates_for
from blinkrun.simulator.cost import EMULATED, Cost
from blinkrun.simulator.engine import simulate
from blinkrun.topology.graph import LinkKind, Topology, induce, select_links
from blinkrun.topology.model import LinkSet
from blinkrun.types import Collective, DType, Rank

DTYPE = DType.FLOAT32
SHORTEST_NS, LONGEST_NS = 20_000_000, 500_000_000  # of sizes that are chosen by their time
_USUAL_SIZES = tuple(16 << 10 << 2 * power for power in range(8))  # 16 KiB to 256 MiB, by 4
_LOSSES = {"exact": Fraction(0), "few": DEFAULT_LOSS}
_CHANNELS = (1, 2)
_LARGE_CHUNKS = 16  # in all of the data
_HALVINGS = 5  # of such chunks, to see whether smaller ones are better
_SMALLEST_CHUNK = 8 << 10
# What a step costs a core, all about it: 86 ms for 3600 steps of 16 KiB, 37 ms for 900 of 64 KiB,
# 8 ranks on 2 cores of an AMD EPYC.
STEP_CPU_NS = 20_000


@dataclass(frozen=True, slots=True)
class Scene:
    """What the calls of a job have in common.

    Attributes
    ----------
    trees_on : Topology
        The links that trees may use, in MB/s.
    emulated : Topology
        All that are there: for rings PCIe as well, where NVLink closes none.
    collective : Collective
    root : Rank
    scale : int
    busy_cost : Cost
        Of the executor where its ranks keep the cores busy: what trees are chosen by.
    """

    trees_on: Topology
    emulated: Topology
    collective: Collective
    root: Rank
    scale: int
    busy_cost: Cost

    @property
    def flow(self) -> Flow:
        """What the trees are for."""
        return Flow(self.collective.label)


def job_of(options: EmulateOptions, num_ranks: int | None) -> EmulatedJob:
    """Return the job that `options` ask for, with every choice made and every time simulated.

    Raises
    ------
    UsageError
        If there is no such machine, it has not these GPUs, the links do not join them, or a size
        is too small.
    """
    subject = subject_of(options.source)
    scene = _scene(subject, options, num_ranks)
    sizes = None if options.sizes is None else _fit(options.sizes, scene)  # wrong ones first
    peer = _peer(subject, scene) if options.against else None
    planner = Planner(scene, options, _programs(subject, scene) if peer else ())
    if sizes is None:
        sizes = _fit(_usual_sizes(planner.mb_per_s, peer, scene), scene)
    return EmulatedJob(
        topology=scene.emulated,
        links=options.links,
        scale=options.scale,
        collective=scene.collective,
        root=scene.root,
        calls=tuple(map(planner.call, sizes)),
        peer=peer,
    )


def _scene(subject: Subject, options: EmulateOptions, num_ranks: int | None) -> Scene:
    gpus = subject.usual if options.gpus is None else options.gpus
    check_ranks(subject, "--gpus", gpus)
    check_ranks(subject, "--root", () if options.root is None else (options.root,))
    if options.root is not None and options.root not in gpus:
        raise UsageError(f"--root {options.root} is not among {subject.named(gpus)}")
    if len(gpus) < 2:
        raise UsageError(f"{options.collective} of {subject.named(gpus)} alone: need at least two")
    if num_ranks not in (None, len(gpus)):
        raise UsageError(
            f"-np {num_ranks}: a rank for each of {len(gpus)} GPUs is {len(gpus)}; leave -np out,"
            " or name the GPUs with --gpus"
        )
    links, flow = LinkSet(options.links), Flow(options.collective)
    everything = subject.topology(LinkSet.ALL)
    whole = everything if links is LinkSet.ALL else _fabric(subject, everything)
    trees_on = induce(whole, gpus)
    check_joined(subject, trees_on, whole, flow=flow, links=links, may_relay=False)
    return Scene(
        trees_on=trees_on,
        emulated=induce(everything, gpus) if options.against else trees_on,
        collective=Collective[options.collective.upper()],
        root=0 if options.root is None else gpus.index(options.root),
        scale=options.scale,
        busy_cost=replace(EMULATED, step_ns=STEP_CPU_NS * -(-len(gpus) // _cores())),
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _fabric(subject: Subject, everything: Topology) -> Topology:
    """Return what joins the GPUs beside PCIe, in MB/s as the rest; an error where there is none."""
    subject.topology(LinkSet.NVLINK)
    return select_links(everything, [kind for kind in LinkKind if kind.is_fabric])


def _peer(subject: Subject, scene: Scene) -> Peer:
    """Return what a ring library finds on the links."""
    root = scene.root if scene.flow.is_rooted else None
    lane = subject.lane_mb_per_s
    found = ring_peer(scene.emulated, scene.flow, root, lane=lane or None)
    if not found.rings:
        raise UsageError(f"--against ring: the links of {subject.name} close no ring of these GPUs")
    return Peer(found.kind, len(found.rings), found.rate, lane)


def _programs(subject: Subject, scene: Scene) -> tuple[PeerProgram, ...]:
    lane = subject.lane_mb_per_s or None
    return ring_programs(scene.emulated, scene.collective, scene.root, lane=lane)


def _fit(sizes: Sequence[int], scene: Scene) -> tuple[int, ...]:
    """Round sizes down to whole elements in every block, as nccl-tests does."""
    unit = DTYPE.itemsize * num_blocks(scene.collective.label, scene.emulated.size)
    for size in sizes:
        if size < unit:
            raise UsageError(
                f"--sizes {size} is too small: one element of {DTYPE.label} in every block is"
                f" {unit} bytes"
            )
    return tuple(dict.fromkeys(size // unit * unit for size in sizes))


def _usual_sizes(mb_per_s: Fraction, peer: Peer | None, scene: Scene) -> list[int]:
    """Return the sizes that take neither too short a time to say much, nor long to wait for."""
    rates = [mb_per_s] if peer is None else [mb_per_s, peer.mb_per_s]

    def takes_ns(size: int, rate: Fraction) -> Fraction:
        return size * 1000 * scene.scale / rate

    short = [size for size in _USUAL_SIZES if takes_ns(size, min(rates)) <= LONGEST_NS]
    found = [size for size in short if takes_ns(size, max(rates)) >= SHORTEST_NS]
    return found or short[-1:] or [_USUAL_SIZES[0]]


class Planner:
    """Chooses trees and rings for sizes by simulating them.

    Parameters
    ----------
    scene : Scene
    options : EmulateOptions
    rings : sequence of PeerProgram
        What the peer chooses from; empty if it is not measured.
    """

    def __init__(self, scene: Scene, options: EmulateOptions, rings: Sequence[PeerProgram]) -> None:
        self._scene = scene
        self._rings = tuple(rings)
        self._chunk_bytes = options.chunk_bytes
        self._candidates = _candidates(scene, options.trees)

    @property
    def mb_per_s(self) -> Fraction:
        """The best rate of any trees."""
        return max(one.packing.rate for one in self._candidates)

    def call(self, size_bytes: int) -> Call:
        """Return the call of a size."""
        choice, trees_ns = self._trees(size_bytes)
        return Call(size_bytes, choice, trees_ns, self._ring(size_bytes))

    def _trees(self, size_bytes: int) -> tuple[Choice, int]:
        """Return the trees that are through first where every step has to wait for a core."""
        best: tuple[int, Choice] | None = None
        for candidate in sorted(self._candidates, key=lambda one: -one.packing.rate):
            least_ns = size_bytes * 1000 * self._scene.scale / candidate.packing.rate
            for channels in _CHANNELS:
                if best is not None and least_ns >= best[0]:
                    continue
                time_ns, choice = self._chunked(candidate, channels, size_bytes)
                if best is None or time_ns < best[0]:
                    best = time_ns, choice
        if best is None:
            raise InternalError("no trees to choose from")
        choice = best[1]
        return choice, self._simulated_ns(self._program(choice), size_bytes, choice.chunk_bytes)

    def _chunked(self, candidate: Candidate, channels: int, size_bytes: int) -> tuple[int, Choice]:
        """Return the best chunk of these trees, found from large to small, and its time."""
        scene = self._scene
        best: tuple[int, Choice] | None = None
        for chunk in (self._chunk_bytes,) if self._chunk_bytes else _chunks(size_bytes):
            choice = Choice(None, candidate.trees, candidate.packing, chunk, channels)
            program = self._program(choice)
            time_ns = self._simulated_ns(program, size_bytes, chunk, scene.busy_cost)
            if best is not None and time_ns >= best[0]:
                break
            best = time_ns, choice
        if best is None:
            raise InternalError("no chunks to choose from")
        return best

    def _program(self, choice: Choice) -> Program:
        scene = self._scene
        return lower_packing(
            choice.packing,
            scene.collective,
            root=scene.root,
            channels_per_tree=choice.channels_per_tree,
        )

    def _ring(self, size_bytes: int) -> Rings | None:
        tried = []
        for one in self._rings:
            chunk = one.chunk_bytes_of(size_bytes)
            time_ns = self._simulated_ns(one.program, size_bytes, chunk)
            tried.append(Rings(one.name, chunk, time_ns))
        return min(tried, key=lambda rings: rings.simulated_ns, default=None)

    def _simulated_ns(
        self, program: Program, size_bytes: int, chunk_bytes: int, cost: Cost = EMULATED
    ) -> int:
        """Return the time on the slowed links, in real nanoseconds."""
        run = simulate(
            program,
            self._scene.emulated,
            size_bytes=size_bytes,
            itemsize=DTYPE.itemsize,
            chunk_bytes=chunk_bytes,
            cost=cost.over(self._scene.scale),
        )
        return run.time_ns * self._scene.scale


def _chunks(size_bytes: int) -> list[int]:
    """Return the chunks that are worth a try for a size, from large to small."""
    largest = 1 << max(0, (size_bytes // _LARGE_CHUNKS).bit_length() - 1)
    found = [largest >> power for power in range(_HALVINGS)]
    return [chunk for chunk in found if chunk >= _SMALLEST_CHUNK] or [_SMALLEST_CHUNK]


def _candidates(scene: Scene, trees: str) -> tuple[Candidate, ...]:
    """Return the trees to choose from: all, or those of the best rate or of nearly that."""
    if trees == "auto":
        return candidates_for(scene.trees_on, scene.collective, scene.root)
    root = scene.root if scene.flow.is_rooted else None
    packed = pack(scene.trees_on, scene.flow, root, loss=_LOSSES[trees])
    return (Candidate(trees, in_shares(scene.trees_on, *packed)),)
