"""The topology of ranks on one CPU host: each socket is a shared-memory switch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import permutations

from blinkrun.errors import TopologyError
from blinkrun.topology import bandwidth
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology


@dataclass(frozen=True, slots=True, order=True)
class Cpu:
    """A logical processor and where it sits."""

    cpu: int
    core: int
    socket: int
    numa: int


@dataclass(frozen=True, slots=True)
class Host:
    """The processors of a host that this process may run on.

    Attributes
    ----------
    cpus : tuple of Cpu
        Online and allowed; sorted.
    complete : bool
        Whether the machine told where they sit; if not, they are taken to share one socket.
    """

    cpus: tuple[Cpu, ...]
    complete: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "cpus", tuple(sorted(self.cpus)))
        if not self.cpus:
            raise TopologyError("a host needs at least one processor")
        if len({cpu.cpu for cpu in self.cpus}) != len(self.cpus):
            raise TopologyError("a host has a processor twice")

    @property
    def sockets(self) -> tuple[int, ...]:
        """Sockets with usable processors, in order."""
        return tuple(sorted({cpu.socket for cpu in self.cpus}))

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """NUMA nodes with usable processors, in order."""
        return tuple(sorted({cpu.numa for cpu in self.cpus}))

    def num_cores(self, socket: int | None = None) -> int:
        """Return the physical cores of one socket, or of all."""
        return len(
            {(cpu.socket, cpu.core) for cpu in self.cpus if socket in (None, cpu.socket)},
        )

    def describe(self) -> str:
        """Return one line for people.

        >>> Host(tuple(Cpu(cpu, core=cpu, socket=0, numa=0) for cpu in range(4))).describe()
        '4 cores on 1 socket, 1 NUMA node'
        """
        parts = (
            _count(self.num_cores(), "core"),
            _count(len(self.sockets), "socket"),
            _count(len(self.numa_nodes), "NUMA node"),
        )
        guess = "" if self.complete else " (the machine hides where they sit)"
        return f"{parts[0]} on {parts[1]}, {parts[2]}{guess}"


def socket_of_rank(host: Host, num_ranks: int) -> tuple[int, ...]:
    """Return the socket of every rank: blocks of ranks over the sockets in order.

    >>> two = Host((Cpu(0, core=0, socket=0, numa=0), Cpu(1, core=0, socket=1, numa=1)))
    >>> socket_of_rank(two, 5)
    (0, 0, 0, 1, 1)
    """
    sockets = host.sockets
    return tuple(sockets[rank * len(sockets) // num_ranks] for rank in range(num_ranks))


def cpu_topology(host: Host, num_ranks: int) -> Topology:
    """Return the topology of `num_ranks` processes that share the memory of one host.

    A rank that takes data from another reads the other's memory itself: link u -> v takes the
    core of the reader v, and between sockets the interconnect of that pair and direction. So a
    socket is a switch with one port per rank. Where ranks outnumber cores they share them.

    Parameters
    ----------
    host : Host
        Where the ranks run, as `probe_host` finds it.
    num_ranks : int
        At least 1.

    Returns
    -------
    Topology
        Capacities in MB/s; device r is rank r.

    Raises
    ------
    TopologyError
        If `num_ranks` is less than 1.

    Examples
    --------
    >>> host = Host((Cpu(0, core=0, socket=0, numa=0), Cpu(1, core=1, socket=0, numa=0)))
    >>> [(link.src, link.dst, link.resources) for link in cpu_topology(host, 2).links]
    [(0, 1, ('core of rank 1',)), (1, 0, ('core of rank 0',))]
    """
    if num_ranks < 1:
        raise TopologyError(f"{num_ranks} ranks on a host; need at least 1")
    place = socket_of_rank(host, num_ranks)
    links = tuple(
        Link(src, dst, _path(place, src, dst), LinkKind.SHM)
        for src, dst in permutations(range(num_ranks), 2)
    )
    crossings = {name for link in links for name in link.resources[1:]}
    return Topology(
        name=f"cpu host, {host.describe()}",
        devices=tuple(range(num_ranks)),
        links=links,
        resources=(
            *_cores(host, place),
            *(Resource(name, bandwidth.SOCKET_MB_PER_S) for name in crossings),
        ),
        unit="MB/s",
    )


def _path(place: tuple[int, ...], src: int, dst: int) -> tuple[str, ...]:
    core = f"core of rank {dst}"
    if place[src] == place[dst]:
        return (core,)
    return core, f"socket {place[src]}->{place[dst]}"


def _cores(host: Host, place: tuple[int, ...]) -> tuple[Resource, ...]:
    """Return the share of a core that every rank has."""
    ranks_on = Counter(place)
    share = {
        socket: bandwidth.CORE_MB_PER_S * min(host.num_cores(socket), ranks) // ranks
        for socket, ranks in ranks_on.items()
    }
    return tuple(
        Resource(f"core of rank {rank}", share[socket]) for rank, socket in enumerate(place)
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")
