"""From options to the job of an emulated machine: planned and simulated before ranks start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from blinkrun.bench.emulate_job import DTYPE, Call, EmulatedJob, Peer, Rings
from blinkrun.bench.emulate_options import EmulateOptions
from blinkrun.bench.work import num_blocks
from blinkrun.cli.subject import Subject, check_joined, check_ranks, subject_of
from blinkrun.errors import UsageError
from blinkrun.planner.make import in_shares
from blinkrun.planner.packing import Flow
from blinkrun.planner.rings import ring_peer
from blinkrun.planner.solve import DEFAULT_LOSS, pack
from blinkrun.schedule.choice import Choice
from blinkrun.schedule.chunking import ALIGN_BYTES, chunks_of
from blinkrun.schedule.ir import Program, Reduce
from blinkrun.schedule.peer import PeerProgram, ring_programs
from blinkrun.select.candidates import Candidate, candidates_for
from blinkrun.select.estimate import Estimate
from blinkrun.select.predict import CHANNELS, best_run
from blinkrun.select.trial import Setting, Trials
from blinkrun.simulator.cost import EMULATED, OURS
from blinkrun.simulator.engine import simulate
from blinkrun.topology.graph import LinkKind, Topology, induce, select_links
from blinkrun.topology.model import LinkSet
from blinkrun.types import Collective, Rank

SHORTEST_NS, LONGEST_NS = 20_000_000, 500_000_000  # of sizes that are chosen by their time
_USUAL_SIZES = tuple(16 << 10 << 2 * power for power in range(8))  # 16 KiB to 256 MiB, by 4
_LOSSES = {"exact": Fraction(0), "few": DEFAULT_LOSS}
# What an operand on its way costs a core, with the waits, naps and flags about it: 86 ms for 3600
# of 16 KiB, 37 ms for 900 of 64 KiB; 8 ranks on 2 cores of an AMD EPYC.
MOVE_CPU_NS = 20_000
_BUSY = Fraction(3, 5)  # of the cores' time, at most
_MOST_CHANNELS = 64  # of all trees together
_TRIED = 8  # of what a formula finds promising


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
    """

    trees_on: Topology
    emulated: Topology
    collective: Collective
    root: Rank
    scale: int

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
        self._trials = Trials(scene.trees_on, scene.collective, scene.root, OURS)

    @property
    def mb_per_s(self) -> Fraction:
        """The best rate of any trees."""
        return max(one.packing.rate for one in self._candidates)

    def call(self, size_bytes: int) -> Call:
        """Return the call of a size."""
        choice, trees_ns = self._trees(size_bytes)
        return Call(size_bytes, choice, trees_ns, self._ring(size_bytes))

    def _trees(self, size_bytes: int) -> tuple[Choice, int]:
        """Return the trees that a job on the machine would take, and their time on slow links.

        If these have such small chunks that this machine cannot move so many in that time, what is
        best with larger ones.
        """
        scene = self._scene
        choice, _ = best_run(
            scene.trees_on,
            scene.collective,
            size_bytes=size_bytes,
            root=scene.root,
            candidates=self._candidates,
        )
        if self._chunk_bytes:
            choice = replace(choice, chunk_bytes=self._chunk_bytes)
        time_ns = self._time_ns(choice, size_bytes)
        most = int(time_ns * _cores() * _BUSY) // MOVE_CPU_NS
        moves = num_moves(self._program(choice), size_bytes, choice.chunk_bytes)
        if moves <= most or self._chunk_bytes:
            return choice, time_ns
        least = choice.chunk_bytes * moves // most // ALIGN_BYTES * ALIGN_BYTES
        coarser = self._coarser(size_bytes, least)
        return min(
            ((one, self._time_ns(one, size_bytes)) for one in coarser), key=lambda one: one[1]
        )

    def _coarser(self, size_bytes: int, least: int) -> list[Choice]:
        """Return what is promising with chunks of `least` bytes and twice as large ones."""
        found = []
        for candidate in self._candidates:
            estimate = Estimate(self._scene.trees_on, candidate.packing, OURS)
            for channels in CHANNELS:
                if channels > 1 and channels * len(candidate.packing.trees) > _MOST_CHANNELS:
                    break
                for chunk in (least, 2 * least):
                    time_ns = estimate.time_ns(
                        size_bytes, chunk_bytes=chunk, channels_per_tree=channels
                    )
                    choice = Choice(None, candidate.trees, candidate.packing, chunk, channels)
                    found.append((time_ns, choice))
        found.sort(key=lambda one: one[0])
        return [choice for _, choice in found[:_TRIED]]

    def _program(self, choice: Choice) -> Program:
        setting = Setting(Candidate(choice.trees, choice.packing), choice.channels_per_tree)
        return self._trials.program(setting)

    def _time_ns(self, choice: Choice, size_bytes: int) -> int:
        return self._simulated_ns(self._program(choice), size_bytes, choice.chunk_bytes)

    def _ring(self, size_bytes: int) -> Rings | None:
        tried = []
        for one in self._rings:
            chunk = one.chunk_bytes_of(size_bytes)
            time_ns = self._simulated_ns(one.program, size_bytes, chunk)
            tried.append(Rings(one.name, chunk, time_ns))
        return min(tried, key=lambda rings: rings.simulated_ns, default=None)

    def _simulated_ns(self, program: Program, size_bytes: int, chunk_bytes: int) -> int:
        """Return the time on the slowed links, in real nanoseconds."""
        run = simulate(
            program,
            self._scene.emulated,
            size_bytes=size_bytes,
            itemsize=DTYPE.itemsize,
            chunk_bytes=chunk_bytes,
            cost=EMULATED.over(self._scene.scale),
        )
        return run.time_ns * self._scene.scale


def num_moves(program: Program, size_bytes: int, chunk_bytes: int) -> int:
    """Return how many operands cross links in a call."""
    count = size_bytes // max(program.input_blocks, program.output_blocks) // DTYPE.itemsize
    chunk = chunk_bytes // DTYPE.itemsize if program.pipelined else 0
    return sum(
        chunks_of(channel.part, program.shares, count, DTYPE.itemsize, chunk).num_chunks
        * sum(len(list(s.moves(rank))) for s in channel.steps if isinstance(s, Reduce))
        for rank, steps in enumerate(program.ranks)
        for channel in steps.channels
    )


def _candidates(scene: Scene, trees: str) -> tuple[Candidate, ...]:
    """Return the trees to choose from: all, or those of the best rate or of nearly that."""
    if trees == "auto":
        return candidates_for(scene.trees_on, scene.collective, scene.root)
    root = scene.root if scene.flow.is_rooted else None
    packed = pack(scene.trees_on, scene.flow, root, loss=_LOSSES[trees])
    return (Candidate(trees, in_shares(scene.trees_on, *packed)),)
