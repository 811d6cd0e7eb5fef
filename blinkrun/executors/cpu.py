"""The executor for ranks of one host that share memory.

It owns the group of the native core: joins it, loads the programs that the plan gives, and runs
calls. Which program runs is decided per call, the same on all ranks: the one-shot program for
small blocks, the direct one where every buffer lies in the arena, else the staged one; where there
are choices by size, the one for that size.

With an emulation the same programs run at the pace of another machine (`emulation.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from blinkrun.comm.base import ControlPlane
from blinkrun.errors import UsageError
from blinkrun.executors.base import Executor, Request, Tuner, not_fast
from blinkrun.executors.emulation import Emulation
from blinkrun.executors.joining import join
from blinkrun.planner.plan import Plan
from blinkrun.schedule.choice import Choices
from blinkrun.schedule.encode import encode
from blinkrun.schedule.ir import Addressing, Program
from blinkrun.schedule.lower import lower, lower_packing
from blinkrun.types import Collective, Rank

_ONE_BLOCK = (Collective.ALLREDUCE, Collective.BROADCAST, Collective.REDUCE)
ANY_SIZE = 2**64 - 1


class CpuExecutor(Executor):
    """One rank's part in the group of its host; every rank of the host must make one.

    Parameters
    ----------
    control : ControlPlane
        How the ranks find each other; not used afterwards.
    ranks : sequence of Rank
        Those of this host.
    plan : Plan
        The trees of collectives for which `choices` has none.
    arena_bytes : int
        Address space of each rank's arena.
    timeout_s : float
        Longest wait for other ranks in a call, in seconds.
    cores : int
        That the ranks share.
    names : sequence of Rank, optional
        Numbers of the ranks in messages: those of a subset have another number in the job.
    sharing : int, optional
        Ranks of the job that share the cores, where they are more than `ranks`.
    emulation : Emulation, optional
        Run at the pace of that machine, whose ranks these are.
    choices : mapping of (Collective, root) to Choices, optional
        Trees and chunks by size; the same on all ranks.

    Raises
    ------
    LaunchError
        If the ranks cannot share memory.
    UsageError
        If the emulated machine has another number of ranks.
    """

    def __init__(  # noqa: PLR0913
        self,
        control: ControlPlane,
        ranks: Sequence[Rank],
        plan: Plan,
        *,
        arena_bytes: int,
        timeout_s: float,
        cores: int,
        names: Sequence[Rank] | None = None,
        sharing: int = 0,
        emulation: Emulation | None = None,
        choices: Mapping[tuple[Collective, Rank], Choices] | None = None,
    ) -> None:
        self.plan: Plan = plan
        self.emulation = emulation
        self.choices = dict(choices or {})
        self.tuners: Mapping[Addressing, Tuner] = {}
        self._pipelined: set[tuple[Collective, Rank, Addressing]] = set()
        self._given: set[tuple[Collective, Rank]] = set()
        self.rank = ranks.index(control.rank)
        self.size = len(ranks)
        self.timeout_s = timeout_s
        if emulation is not None and emulation.topology.size != self.size:
            raise UsageError(
                f"{emulation.topology.name} has {emulation.topology.size} ranks, the job has"
                f" {self.size}"
            )
        self.group = join(
            control,
            ranks,
            names=list(ranks if names is None else names),
            arena_bytes=arena_bytes,
            timeout_s=timeout_s,
            cores=cores,
            sharing=sharing,
            rates=emulation.bytes_per_s if emulation else (),
            within_reach=self._reaches if emulation else None,
            more={"links": [list(link) for link in emulation.links]} if emulation else None,
        )
        self.fast = self.group.fast()
        if emulation is None:  # there, what is not called need not fit the machine
            self.load(Collective.ALLREDUCE, 0)

    def _reaches(self, other: int) -> bool:
        return self.emulation is None or self.emulation.reaches(self.rank, other)

    def load(self, collective: Collective, root: Rank) -> None:
        """Lower the programs of `collective` and hand them to the core, if it has them not yet."""
        root = root if collective.is_rooted else 0
        if self.group.covers(int(collective), root) or (collective, root) in self._given:
            return
        ways = [Addressing.DIRECT, Addressing.STAGED]
        if collective is Collective.ALLREDUCE:  # gradients come from anywhere and stay in buckets
            ways.append(Addressing.OUTPUT_ONLY)
        for addressing in ways:
            for program, most_bytes, chunk_bytes in self._lowered(collective, root, addressing):
                self._load(program, most_bytes, chunk_bytes)
                if program.pipelined:
                    self._pipelined.add((collective, root, addressing))
        if self.emulation is None:
            self._load(lower(self.plan, collective, root=root, eager=True))

    def load_program(self, program: Program, *, chunk_bytes: int = 0) -> None:
        """Make `program` the only one for its collective and root, in place of any before.

        All ranks must do so between the same two calls. Buffers must then lie where the program's
        addressing says: in the arena for a DIRECT one.

        Parameters
        ----------
        program : Program
            That `verify` accepts; it is not checked again.
        chunk_bytes : int, default 0
            Of a pipelined program, in bytes; 0 leaves it to the core.

        Raises
        ------
        ProgramError
            If an emulated machine lacks a link that it needs; on all ranks then.
        UsageError
            If calls that were submitted before are still under way.
        """
        if not self.group.idle():
            raise UsageError("a program is loaded between calls; wait for the jobs before it")
        if self.emulation is not None:
            self.emulation.check(program)
        self.group.unload(int(program.collective), program.root)
        self._given.add((program.collective, program.root))
        self._load(program, chunk_bytes=chunk_bytes)

    def _lowered(
        self, collective: Collective, root: Rank, addressing: Addressing
    ) -> Iterator[tuple[Program, int, int]]:
        """Yield the programs with the largest size that each is for, and its chunk in bytes."""
        chosen = self.choices.get((collective, root))
        if chosen is None:
            yield lower(self.plan, collective, root=root, addressing=addressing), ANY_SIZE, 0
            return
        for choice in chosen.by_size:
            program = lower_packing(
                choice.packing,
                collective,
                root=root,
                addressing=addressing,
                channels_per_tree=choice.channels_per_tree,
            )
            most_bytes = ANY_SIZE if choice.upto_bytes is None else choice.upto_bytes
            yield program, most_bytes, choice.chunk_bytes

    def _load(self, program: Program, most_bytes: int = ANY_SIZE, chunk_bytes: int = 0) -> None:
        routes = None
        if self.emulation is not None:
            self.emulation.check(program)  # of all ranks, so that all of them raise
            routes = self.emulation.routes
        self.group.load(encode(program, self.rank, routes), most_bytes, chunk_bytes)

    def tune(self, tuners: Mapping[Addressing, Tuner]) -> None:
        """Let a tuner choose the chunks of all ranks; for the first rank, before its first call.

        There is one for each way of addressing: where the buffers lie decides which chunks are
        good. Its calls then go the long way, which takes about a microsecond more.
        """
        self.tuners = tuners
        self.fast = not_fast

    def let_go(self) -> None:
        """Do nothing: one host needs no MPI."""

    def run(self, request: Request, *, may_spin: bool = True) -> None:
        """Run one call to its end; without `may_spin` a waiting thread leaves its core at once."""
        self.load(request.collective, request.root)
        tuner = self._tuner(request) if self.tuners else None
        if tuner is None:
            self.group.run(*request.args(), may_spin)
        else:
            self._run_tuned(tuner, request)

    def _tuner(self, request: Request) -> Tuner | None:
        """Return what chooses the chunks of a call; None where it has none, or chunks of its own.

        The other ranks' buffers are taken to lie where this one's do.
        """
        is_in = self.contains(request.input)
        is_out = self.contains(request.output)
        way = Addressing.DIRECT if is_in and is_out else Addressing.STAGED
        if is_out and not is_in and request.collective is Collective.ALLREDUCE:
            way = Addressing.OUTPUT_ONLY
        root = request.root if request.collective.is_rooted else 0
        key = (request.collective, root)
        if key in self._given or (*key, way) not in self._pipelined or not self.group.idle():
            return None
        return self.tuners.get(way)

    def _run_tuned(self, tuner: Tuner, request: Request) -> None:
        blocks = 1 if request.collective in _ONE_BLOCK else self.size
        size_bytes = request.count * request.dtype.itemsize * blocks
        call = request.collective, size_bytes
        self.group.set_chunk_bytes(tuner.chunk_bytes(*call, root=request.root))
        try:
            self.group.run(*request.args())
        finally:
            self.group.set_chunk_bytes(0)
        took_ns = self.group.last_paced_ns() if self.emulation else self.group.last_ns()
        tuner.record(*call, took_ns, root=request.root)
