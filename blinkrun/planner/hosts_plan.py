"""The plan of a job on several hosts: for every collective, trees over all its ranks, and chunks.

A value like `Plan`, and the same on all ranks that make it of the same hosts: nothing is sent.
Packings are made when they are first asked for.

A chunk is a fourth of what a tree carries, or an eighth where data passes several networks one
after the other: so many keep all links busy. It has at most 256 KiB, which was the fastest length
from 1 Gbit/s to what a machine hands itself; where the network is fast and far, as much as keeps it
full with the few chunks that a tree has under way, up to 1 MiB. Below 32 KiB messages cost more
than waiting for each other.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from blinkrun.errors import PlanError, TopologyError
from blinkrun.planner.multihost import plan_hosts
from blinkrun.planner.packing import Flow
from blinkrun.planner.plan import PlannedPacking, describe_packing
from blinkrun.planner.renumber import renumbered
from blinkrun.topology.between import Network
from blinkrun.topology.graph import Topology
from blinkrun.topology.hosts import join_hosts
from blinkrun.types import Collective, Rank

__all__ = ["HostsPlan", "Network"]

HOSTS_PLAN_VERSION = 1  # raised when the same hosts would be planned differently
LEAST_CHUNK_BYTES, USUAL_CHUNK_BYTES, MOST_CHUNK_BYTES = 32 << 10, 256 << 10, 1 << 20
_UNDER_WAY = 4  # chunks of a tree between two hosts: the depth of slots of `schedule.lower_builder`
_SIZES = [1 << bits for bits in range(16, 34)]  # 64 KiB to 8 GiB: a chunk may grow at each


@dataclass(frozen=True)
class HostsPlan:
    """Trees for all ranks of several hosts.

    Attributes
    ----------
    hosts : tuple of Topology
        In the order of their first ranks, in MB/s; rank r of a host's topology is its r-th.
    ranks : tuple of tuple of Rank
        The communicator's ranks of each host, ascending; they need not be contiguous.
    network : tuple of Network
        What joins each host to the others.

    Raises
    ------
    PlanError
        If there are less than two hosts, or ranks and hosts do not fit each other.

    Examples
    --------
    >>> from blinkrun.topology.cpu import Cpu, Host, cpu_topology
    >>> host = cpu_topology(Host((Cpu(0, 0, 0, 0), Cpu(1, 1, 0, 0))), 2)
    >>> plan = HostsPlan((host, host), ((0, 2), (1, 3)), (Network(125), Network(125)))
    >>> packing = plan.packing(Collective.ALLREDUCE)
    >>> packing.rate, packing.bound, [tree.root for tree in packing.trees]
    (Fraction(125, 1), Fraction(125, 1), [0, 1, 2, 3])
    >>> packing.trees[1].parents  # over the network to rank 0, from there to rank 2
    (1, -1, 0, 1)
    """

    hosts: tuple[Topology, ...]
    ranks: tuple[tuple[Rank, ...], ...]
    network: tuple[Network, ...]
    _packings: dict[tuple[Collective, Rank], PlannedPacking] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if len(self.hosts) < 2:
            raise PlanError(f"a plan for several hosts, but there are {len(self.hosts)}")
        if not len(self.hosts) == len(self.ranks) == len(self.network):
            raise PlanError(
                f"{len(self.hosts)} hosts, ranks of {len(self.ranks)}, networks of "
                f"{len(self.network)}"
            )
        if sorted(rank for ranks in self.ranks for rank in ranks) != list(range(self.size)):
            raise PlanError(f"hosts have the ranks {self.ranks}; every rank must be on one of them")
        for number, (host, ranks) in enumerate(zip(self.hosts, self.ranks, strict=True)):
            if host.size != len(ranks) or list(ranks) != sorted(ranks):
                raise PlanError(
                    f"host {number} ({host.name}) has {host.size} ranks, not {ranks} in order"
                )
        firsts = [ranks[0] for ranks in self.ranks]
        if firsts != sorted(firsts):
            raise PlanError(f"hosts are numbered by their first ranks, these are {firsts}")

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(len(ranks) for ranks in self.ranks)

    @property
    def hosts_of(self) -> tuple[int, ...]:
        """The host of every rank of the communicator, as `Program.hosts`."""
        host_of = {rank: host for host, ranks in enumerate(self.ranks) for rank in ranks}
        return tuple(host_of[rank] for rank in range(self.size))

    @cached_property
    def joined(self) -> Topology:
        """All ranks, host by host, with all links."""
        return join_hosts(self.hosts, networks=self.network)

    @cached_property
    def topology_hash(self) -> str:
        """Hash of all that the plan depends on."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def packing(self, collective: Collective, root: Rank = 0) -> PlannedPacking:
        """Return the trees of a collective, over the communicator's ranks, in MB/s.

        Parameters
        ----------
        collective : Collective
            Not alltoall or barrier, which have none.
        root : Rank, default 0
            Of broadcast and reduce.

        Raises
        ------
        PlanError
            If the collective has no trees, or there is no such root.
        """
        key = (collective, root if collective.is_rooted else 0)
        if key not in self._packings:
            self._packings[key] = self._plan(*key)
        return self._packings[key]

    def _plan(self, collective: Collective, root: Rank) -> PlannedPacking:
        if collective.label not in list(Flow):
            raise PlanError(f"{collective.label} takes no trees")
        if root not in range(self.size):
            raise PlanError(f"{collective.label} from root {root} of {self.size} ranks")
        flow = Flow(collective.label)
        ranks = [rank for own in self.ranks for rank in own]
        found = plan_hosts(
            self.hosts,
            self.joined,
            flow,
            ranks.index(root) if flow.is_rooted else None,
            networks=self.network,
            exact=False,
        )
        return renumbered(found, ranks)

    def chunks(self, collective: Collective, root: Rank = 0) -> tuple[tuple[int | None, int], ...]:
        """Return the chunk for each size: (bytes of the collective up to which, chunk bytes).

        Sizes are as nccl-tests counts them; the last has None, for any more.
        """
        found: list[tuple[int | None, int]] = []
        for size_bytes in _SIZES:
            chunk = self._chunk_bytes(collective, root, size_bytes)
            if found and found[-1][1] == chunk:
                found.pop()
            found.append((size_bytes, chunk))
        return (*found[:-1], (None, found[-1][1]))

    def _chunk_bytes(self, collective: Collective, root: Rank, size_bytes: int) -> int:
        if collective.label not in list(Flow):
            return USUAL_CHUNK_BYTES
        packing = self.packing(collective, root)
        largest = max(tree.stop - tree.start for tree in packing.trees)
        num_trees = Fraction(packing.shares * (self.size if packing.joint else 1), largest)
        passes_several = len(self.hosts) > 2 and collective is not Collective.ALLREDUCE
        wanted = _power(size_bytes / num_trees / (8 if passes_several else 4))
        latency_us = max(network.latency_us for network in self.network)
        # MB/s are bytes a us; a message and what tells of its arrival
        under_way = packing.rate * 2 * latency_us
        window = 2 * _power(under_way / (num_trees * _UNDER_WAY))
        most = min(max(window, USUAL_CHUNK_BYTES), MOST_CHUNK_BYTES)
        return min(max(wanted, LEAST_CHUNK_BYTES), most)

    def describe(self) -> str:
        """Return a few lines for people: the hosts, and what collectives use."""
        lines = [f"{len(self.hosts)} hosts: {self.size} ranks"]
        for number, (host, network) in enumerate(zip(self.hosts, self.network, strict=True)):
            nics = f" over {network.nics} NICs" if network.nics > 1 else ""
            lines.append(
                f"  host {number}, ranks {_ranks(self.ranks[number])}: {host.name}; network "
                f"{_rate(network.mb_per_s)} MB/s{nics}, {network.latency_us} us"
            )
        for name, collective in (
            ("allreduce", Collective.ALLREDUCE),
            ("broadcast, root 0", Collective.BROADCAST),
            ("reduce, root 0", Collective.REDUCE),
            ("allgather", Collective.ALLGATHER),
            ("reducescatter", Collective.REDUCESCATTER),
        ):
            with_roots = collective is Collective.ALLREDUCE
            text = describe_packing(self.packing(collective), with_roots=with_roots)
            lines.append(f"  {name}: {text}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return what the plan is made of as JSON text; equal plans give equal text."""
        return json.dumps(
            {
                "version": HOSTS_PLAN_VERSION,
                "hosts": [json.loads(host.to_json()) for host in self.hosts],
                "ranks": [list(ranks) for ranks in self.ranks],
                "network": [_network_out(network) for network in self.network],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> HostsPlan:
        """Return the plan that `to_json` wrote.

        Raises
        ------
        PlanError
            If `text` is no plan of this version, or one that contradicts itself.
        """
        try:
            data = json.loads(text)
            if data["version"] != HOSTS_PLAN_VERSION:
                raise PlanError(f"plan of version {data['version']}, this is {HOSTS_PLAN_VERSION}")
            return cls(
                tuple(Topology.from_json(json.dumps(host)) for host in data["hosts"]),
                tuple(tuple(ranks) for ranks in data["ranks"]),
                tuple(_network_in(network) for network in data["network"]),
            )
        except PlanError:
            raise
        except (
            TopologyError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            ArithmeticError,
        ) as err:
            raise PlanError(f"text is no plan of hosts: {type(err).__name__}: {err}") from err


def _network_out(network: Network) -> dict[str, Any]:
    return {
        "mb_per_s": str(network.mb_per_s),
        "latency_us": network.latency_us,
        "nics": network.nics,
        "nic_of": list(network.nic_of),
    }


def _network_in(data: dict[str, Any]) -> Network:
    return Network(
        Fraction(data["mb_per_s"]), data["latency_us"], data["nics"], tuple(data["nic_of"])
    )


def _power(number: Fraction) -> int:
    """Return the largest power of two up to a number, at least 1."""
    return 1 << max(0, int(number).bit_length() - 1)


def _rate(mb_per_s: Fraction | int) -> str:
    return f"{float(mb_per_s):,.4g}"


def _ranks(ranks: tuple[Rank, ...]) -> str:
    """Return ranks in short.

    >>> _ranks((0, 1, 2, 5))
    '0-2,5'
    """
    runs: list[list[Rank]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
