"""The executor for ranks on several hosts: shared memory inside each, messages by MPI between them.

A call runs one program over all ranks (`schedule.lower_hosts`). Programs are made when they are
first called for, on every rank alike: the plan is the same value everywhere, so nobody needs to
ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from blinkrun.comm.base import ControlPlane, Wire
from blinkrun.comm.world import World
from blinkrun.errors import UsageError
from blinkrun.executors import native
from blinkrun.executors.base import Executor, Tuner
from blinkrun.executors.joining import join
from blinkrun.planner.hosts_plan import HostsPlan
from blinkrun.schedule.encode import encode
from blinkrun.schedule.ir import Addressing, Program
from blinkrun.schedule.lower_hosts import lower_alltoall_hosts, lower_eager_hosts, lower_hosts
from blinkrun.types import Collective, Rank

ANY_SIZE = 2**64 - 1


class HostsExecutor(Executor):
    """One rank's part in the group of all ranks; every rank of every host must make one.

    Parameters
    ----------
    control : ControlPlane
        How the ranks find each other; not used afterwards.
    world : World
        Where they are.
    plan : HostsPlan
        The trees of collectives; the same on all ranks.
    wire : Wire
        Of the same ranks; for this executor alone.
    arena_bytes : int
        Address space of each rank's arena.
    timeout_s : float
        Longest wait for other ranks in a call, in seconds.
    cores : int
        That the ranks of this host share.
    names : sequence of Rank, optional
        Numbers of the ranks in messages: those of a subset have another number in the job.
    sharing : int, optional
        Ranks of the job that share this host's cores, where they are more than those here.

    Raises
    ------
    LaunchError
        If the ranks of a host cannot share memory.
    """

    def __init__(  # noqa: PLR0913
        self,
        control: ControlPlane,
        world: World,
        plan: HostsPlan,
        wire: Wire,
        *,
        arena_bytes: int,
        timeout_s: float,
        cores: int,
        names: Sequence[Rank] | None = None,
        sharing: int = 0,
    ) -> None:
        self.plan: HostsPlan = plan
        self.emulation = None
        self.tuners: Mapping[Addressing, Tuner] = {}
        self.rank = world.rank
        self.size = world.size
        self.timeout_s = timeout_s
        self._hosts = world.host_of
        self._wire = wire  # the communicator lives as long
        everyone = list(range(world.size)) if names is None else list(names)
        self.group = join(
            control,
            world.local_ranks,
            names=[everyone[rank] for rank in world.local_ranks],
            arena_bytes=arena_bytes,
            timeout_s=timeout_s,
            cores=cores,
            sharing=sharing,
            more={
                "wire": native.wire_words(wire),
                "everyone": everyone,
                "hosts": list(world.host_of),
                "host_names": list(world.host_names),
                "index": world.rank,
            },
        )
        # Whatever fits: one message either way is less than the messages of trees and a meeting.
        self.group.set_eager_bytes(native.EAGER_AREA)
        wire.before_end(self._end)
        self.fast = self.group.fast()
        self.load(Collective.ALLREDUCE, 0)

    def load(self, collective: Collective, root: Rank) -> None:
        """Lower the programs of `collective` and hand them to the core, if it has them not yet."""
        root = root if collective.is_rooted else 0
        if self.group.covers(int(collective), root):
            return
        for program, most_bytes, chunk_bytes in self._lowered(collective, root):
            self.group.load(encode(program, self.rank), most_bytes, chunk_bytes)

    def load_program(self, program: Program, *, chunk_bytes: int = 0) -> None:
        """Make `program` the only one for its collective and root, in place of any before.

        All ranks must do so between the same two calls; see `CpuExecutor.load_program`.

        Raises
        ------
        UsageError
            If calls that were submitted before are still under way.
        """
        if not self.group.idle():
            raise UsageError("a program is loaded between calls; wait for the jobs before it")
        self.group.unload(int(program.collective), program.root)
        self.group.load(encode(program, self.rank), ANY_SIZE, chunk_bytes)

    def tune(self, tuners: Mapping[Addressing, Tuner]) -> None:
        """Raise UsageError: chunks follow from the network's rate, which the plan knows."""
        del tuners
        raise UsageError("chunks are tuned on one host only; over hosts the plan says them")

    def let_go(self) -> None:
        """End what the group needs of MPI; whoever still waits for this rank has been told."""
        self.group.close_network()

    def _end(self) -> None:
        """Leave, since MPI ends; for a program that ends it before it has shut us down."""
        try:
            self.group.leave()
        finally:
            self.let_go()

    def _lowered(self, collective: Collective, root: Rank) -> Iterator[tuple[Program, int, int]]:
        """Yield the programs with the largest size that each is for, and its chunk in bytes."""
        for addressing in _ways(collective):
            if collective is Collective.ALLTOALL:
                program = lower_alltoall_hosts(self._hosts, addressing=addressing)
            else:
                packing = self.plan.packing(collective, root)
                program = lower_hosts(
                    packing, collective, self._hosts, root=root, addressing=addressing
                )
            for most_bytes, chunk_bytes in self.plan.chunks(collective, root):
                yield program, ANY_SIZE if most_bytes is None else most_bytes, chunk_bytes
        if collective is Collective.ALLREDUCE:
            yield lower_eager_hosts(self._hosts), ANY_SIZE, 0


def _ways(collective: Collective) -> tuple[Addressing, ...]:
    if collective is Collective.ALLREDUCE:  # gradients come from anywhere and stay in buckets
        return (Addressing.DIRECT, Addressing.STAGED, Addressing.OUTPUT_ONLY)
    return (Addressing.DIRECT, Addressing.STAGED)
