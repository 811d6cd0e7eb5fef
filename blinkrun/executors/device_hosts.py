"""What ranks with devices on several hosts have beside: programs with messages, and a proxy.

A kernel fills and empties rings of chunks in pinned memory of its host; a thread of the rank, the
proxy (`csrc/proxy.hpp`), carries the chunks by MPI. Before each call the proxies of the hosts tell
each other what their ranks call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blinkrun import env
from blinkrun.comm.base import ControlPlane
from blinkrun.comm.world import World
from blinkrun.errors import InternalError, NotSupportedError
from blinkrun.executors import native
from blinkrun.executors.base import Executor
from blinkrun.executors.device_api import DeviceInfo
from blinkrun.executors.device_join import together
from blinkrun.executors.device_plan import check_sharing, device_topology
from blinkrun.executors.device_programs import num_streams, pieces_of
from blinkrun.executors.meeting import wire_of
from blinkrun.planner.hosts_plan import HostsPlan
from blinkrun.schedule.ir import Addressing, Program
from blinkrun.schedule.lower_hosts import lower_alltoall_hosts, lower_hosts
from blinkrun.topology.devices import DeviceLinks, Reach
from blinkrun.topology.graph import Topology
from blinkrun.types import Collective, Rank

RINGS_BYTES = 32 << 20  # pinned, of each rank: enough for the chunks below in almost all programs
RING_DEPTH = 4  # chunks of a stream, as in csrc/device_layout.hpp
LEAST_CHUNK_BYTES = 16 << 10  # of a piece; a message of less costs more than it carries
ANY_SIZE = 2**64 - 1
LINE = 256


class DeviceHosts:
    """One rank's part in what joins devices of several hosts; every rank of `control` makes one.

    Parameters
    ----------
    control : ControlPlane
        How the ranks find each other; not used afterwards.
    world : World
        Where they are: on several hosts.
    host : HostsExecutor
        Of the same ranks.
    infos : sequence of DeviceInfo
        The devices of this host's ranks.
    reach : sequence of sequence of bool
        Which of them address which others' memory.
    blocks : int
        Thread blocks that every rank has at least; the same on all ranks.
    scratch_bytes : int
        For slots; the same on all ranks.

    Attributes
    ----------
    plan : HostsPlan
        Trees over all devices.
    rings_bytes : int
        Pinned memory that `start` needs.

    Raises
    ------
    LaunchError
        If there is no MPI, or a device has more ranks than it may.
    """

    def __init__(  # noqa: PLR0913
        self,
        control: ControlPlane,
        world: World,
        host: Executor,
        *,
        infos: Sequence[DeviceInfo],
        reach: Reach,
        blocks: int,
        scratch_bytes: int,
    ) -> None:
        self.rings_bytes = RINGS_BYTES
        self._host = host
        self._hosts = world.host_of
        self._blocks = blocks
        self._scratch_bytes = scratch_bytes
        self._wire = wire_of(control, world)  # the communicator lives as long
        self._proxy: native.Proxy | None = None
        self._programs: dict[bytes, int] = {b"": -1}
        if not isinstance(host.plan, HostsPlan):
            raise InternalError("the ranks are on several hosts, and their plan is of one")
        leads = world.rank in world.leaders
        said = together(control, lambda: _links(infos, reach).to_json() if leads else "")
        self.plan = HostsPlan(
            tuple(Topology.from_json(said[leader]) for leader in world.leaders),
            world.groups,
            host.plan.network,
        )

    def lowered(self, collective: Collective, root: Rank) -> Iterator[tuple[Program, int, int]]:
        """Yield the programs of a collective with the largest call and the chunk of each.

        Hosts choose among them by where their buffers lie. What they say to each other is the same
        in all, and so are the chunks.
        """
        programs = [self._lower(collective, root, addressing) for addressing in _ways(collective)]
        pieces = min(pieces_of(program, self._blocks) for program in programs)
        most = most_chunk(
            programs, pieces, rings_bytes=self.rings_bytes, scratch_bytes=self._scratch_bytes
        )
        for most_bytes, chunk_bytes in self.plan.chunks(collective, root):
            chunk = min(max(chunk_bytes // pieces, LEAST_CHUNK_BYTES), most)
            for program in programs:
                yield program, ANY_SIZE if most_bytes is None else most_bytes, chunk

    def _lower(self, collective: Collective, root: Rank, addressing: Addressing) -> Program:
        if collective is Collective.ALLTOALL:
            return lower_alltoall_hosts(self._hosts, addressing=addressing)
        packing = self.plan.packing(collective, root)
        return lower_hosts(packing, collective, self._hosts, root=root, addressing=addressing)

    def start(self, device_host: int, rings: int, rings_bytes: int) -> None:
        """Start the proxy on the memory that it shares with this rank's kernels.

        Parameters
        ----------
        device_host : int
            Address of the rank's `device_layout.Host` in this process.
        rings : int
            Address of the rings in this process.
        rings_bytes : int
            Their size.
        """
        self._proxy = native.Proxy(
            group=self._host.group,
            wire=native.wire_words(self._wire),
            host=device_host,
            rings=rings,
            rings_bytes=rings_bytes,
            scratch_bytes=self._scratch_bytes,
        )
        self._wire.before_end(self.close)

    def submit(self, flat: bytes, *, call: bytes) -> None:
        """Tell the proxy of the next call; before its kernel is launched.

        Parameters
        ----------
        flat : bytes
            Any of the programs that the kernel may choose; empty if nothing moves.
        call : bytes
            What the rank calls, a `device_layout.Desc`.
        """
        proxy = self._started()
        number = self._programs.get(flat)
        if number is None:
            number = self._programs[flat] = proxy.load(flat)
        proxy.submit(number, call)

    def reason(self, call: int) -> str:
        """Return how the call of that number differs between ranks."""
        return self._started().words(call) or f"call {call} differs between ranks of this host"

    def late(self, call: int) -> list[Rank]:
        """Return the ranks that have not come to a call, among all."""
        return [] if self._proxy is None else self._proxy.missing(call)

    @staticmethod
    def refuse_capture() -> None:
        """Raise NotSupportedError: a graph's replays would be unknown to the proxy."""
        raise NotSupportedError(
            "collectives over several hosts captured in a CUDA graph: messages between hosts are"
            " sent by a thread of the host; call them outside of the capture"
        )

    def close(self) -> None:
        """End the proxy; the rank's kernels are through. Harmless if it was not started."""
        if self._proxy is not None:
            self._proxy.close()

    def _started(self) -> native.Proxy:
        if self._proxy is None:
            raise InternalError("a call on devices of several hosts before their proxy has started")
        return self._proxy


def most_chunk(
    programs: Sequence[Program], pieces: int, *, rings_bytes: int, scratch_bytes: int
) -> int:
    """Return the largest chunk, in bytes, for which rings and slots have room.

    Parameters
    ----------
    programs : sequence of Program
        For which it is to be the same.
    pieces : int
        In which their channels are cut: each has rings and slots of its own.
    rings_bytes, scratch_bytes : int
        What there is for rings and for slots, of each rank.

    Returns
    -------
    int
        Whole lines of `LINE` bytes, at least one.
    """
    streams = max(num_streams(program) for program in programs)
    slots = max(program.slots * program.slot_depth for program in programs)
    rings = rings_bytes // max(streams * pieces * RING_DEPTH, 1)
    room = min(rings, scratch_bytes // max(slots * pieces, 1))
    return max(room // LINE * LINE, LINE)


def _links(infos: Sequence[DeviceInfo], reach: Reach) -> Topology:
    """Return what joins the devices of this host."""
    check_sharing(infos, env.ranks_per_gpu())
    links = env.choice(env.DEVICE_LINKS, tuple(DeviceLinks), DeviceLinks.AUTO)
    found = device_topology(infos, reach, links=links)
    # Hosts are joined without relays, which would be ranks that are none.
    return device_topology(infos, reach, machine=lambda: None) if found.num_relays else found


def _ways(collective: Collective) -> tuple[Addressing, ...]:
    if collective is Collective.ALLREDUCE:  # gradients come from anywhere and stay in buckets
        return (Addressing.DIRECT, Addressing.STAGED, Addressing.OUTPUT_ONLY)
    return (Addressing.DIRECT, Addressing.STAGED)
