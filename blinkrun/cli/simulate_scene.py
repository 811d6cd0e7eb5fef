"""What a simulation happens on: the ranks of a job, what joins them, and what things cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkrun.cli.figures import format_gpus
from blinkrun.cli.simulate_options import SimulateOptions
from blinkrun.cli.subject import Subject, check_joined, check_ranks
from blinkrun.errors import UsageError
from blinkrun.planner.packing import Flow
from blinkrun.simulator.cost import OURS, RINGS, SHARED_MEMORY, Cost
from blinkrun.topology.bandwidth import DEFAULT
from blinkrun.topology.cpu import Host
from blinkrun.topology.graph import LinkKind, Topology, induce, select_links
from blinkrun.topology.hosts import MB_PER_S_PER_GBPS, join_hosts
from blinkrun.topology.model import LANE, LinkSet
from blinkrun.types import Collective, Rank

MOST_RANKS = 32  # of several hosts


@dataclass(frozen=True, slots=True)
class Scene:
    """A collective on the ranks of a job.

    Attributes
    ----------
    collective : Collective
    topology : Topology
        The ranks, host by host, with the links of the plan; in MB/s or kB/s. Of many hosts: the
        first.
    rings : Topology
        The same ranks with what a ring library may use: PCIe too, where NVLink closes no ring.
    root : Rank
        0 where there is none.
    hosts : tuple of Topology
        What every host has of `topology`; one for a single host.
    network_mb_per_s : Fraction
        What each host sends, and receives at the same time; 0 for a single host.
    lane_mb_per_s : int
        What a lane of the fabric is worth; 0 without one.
    cost, ring_cost : Cost
    """

    collective: Collective
    topology: Topology
    rings: Topology
    root: Rank
    hosts: tuple[Topology, ...]
    network_mb_per_s: Fraction
    lane_mb_per_s: int
    cost: Cost
    ring_cost: Cost

    @property
    def is_many(self) -> bool:
        """Whether there are so many hosts, all alike, that one is simulated for all."""
        return _is_many([host.devices for host in self.hosts])

    @property
    def flow(self) -> Flow:
        """What trees are for; of alltoall, which has none, that of an exchange of all with all."""
        if self.collective is Collective.ALLTOALL:
            return Flow.BOTH
        return Flow(self.collective.label)


def scene_of(subject: Subject, options: SimulateOptions) -> Scene:
    """Return what `options` ask for, checked.

    Raises
    ------
    UsageError
        If a GPU does not exist, there is one alone, nothing joins them, or the machine does not
        have the links.
    """
    collective = Collective[options.collective.upper()]
    links = LinkSet(options.links or LinkSet.ALL)
    groups = _groups(subject, options)
    whole = in_mb_per_s(subject, links)
    each = {group: _host(subject, whole, group, options, links) for group in groups}
    hosts = tuple(each[group] for group in groups)
    beside = LinkSet.PCIE if links is LinkSet.PCIE else LinkSet.ALL
    more = whole if links is beside else in_mb_per_s(subject, beside)
    root = groups[0].index(groups[0][0] if options.root is None else options.root)
    cost, ring_cost = _costs(subject)
    scene = Scene(
        collective=collective,
        topology=_joined(hosts, options),
        rings=_joined(tuple(induce(more, group) for group in groups), options),
        root=root if collective.is_rooted else 0,
        hosts=hosts,
        network_mb_per_s=(options.network_gbps or Fraction(0)) * MB_PER_S_PER_GBPS,
        lane_mb_per_s=subject.lane_mb_per_s,
        cost=cost,
        ring_cost=ring_cost,
    )
    if collective is Collective.ALLTOALL:
        _check_all_linked(scene, subject.what)
    return scene


def in_mb_per_s(subject: Subject, links: LinkSet) -> Topology:
    """Return all ranks of a machine with these links, in MB/s also where lanes are counted.

    Raises
    ------
    UsageError
        If there are no such links.
    """
    topology = subject.topology(links)
    if topology.unit != LANE:
        return topology
    everything = subject.topology(LinkSet.ALL)
    return select_links(everything, [kind for kind in LinkKind if kind.is_fabric])


def _groups(subject: Subject, options: SimulateOptions) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs of every host."""
    groups = options.gpus or (subject.usual,)
    for group in groups:
        check_ranks(subject, "--gpus", group)
    check_ranks(subject, "--root", () if options.root is None else (options.root,))
    if len(groups) == 1:
        groups *= options.hosts
    if sum(map(len, groups)) < 2:
        raise UsageError(
            f"{options.collective} of {subject.what} {groups[0][0]} alone: need at least two"
        )
    if _is_many(groups):
        _check_many(groups, options)
    if options.root is not None and options.root not in groups[0]:
        raise UsageError(f"--root {options.root} is not among {subject.named(groups[0])}")
    return groups


def _is_many(groups: Sequence[Sequence[int]]) -> bool:
    return len(groups) > 1 and sum(map(len, groups)) > MOST_RANKS


def _check_many(groups: Sequence[Sequence[int]], options: SimulateOptions) -> None:
    """Refuse what takes all ranks of many hosts, where one host is simulated for all."""
    ranks = sum(map(len, groups))
    refused = {
        f"{options.collective}": options.collective != "allreduce",
        "other GPUs on each": any(group != groups[0] for group in groups),
        "--against ring": options.against is not None,
        "--trace": options.trace is not None,
    }
    for what, is_asked in refused.items():
        if is_asked:
            raise UsageError(
                f"--hosts {len(groups)}: with more than {MOST_RANKS} ranks ({ranks}) one host is "
                f"simulated for all, which goes for allreduce on equal hosts, not with {what}"
            )


def _host(
    subject: Subject,
    whole: Topology,
    group: Sequence[int],
    options: SimulateOptions,
    links: LinkSet,
) -> Topology:
    """Return the ranks of one host, which its own links must join."""
    topology = induce(whole, group)
    if len(group) > 1:
        direct = options.collective == "alltoall"
        flow = Flow.BOTH if direct else Flow(options.collective)
        check_joined(subject, topology, whole, flow=flow, links=links, may_relay=False)
    return topology


def _joined(hosts: Sequence[Topology], options: SimulateOptions) -> Topology:
    if len(hosts) == 1 or _is_many([host.devices for host in hosts]):
        return hosts[0]
    return join_hosts(hosts, network_gbps=options.network_gbps or Fraction(0))


def _costs(subject: Subject) -> tuple[Cost, Cost]:
    """Return what things cost, with the latencies of the user's own table where there is one."""
    if isinstance(subject.found, Host):
        return SHARED_MEMORY, SHARED_MEMORY
    if subject.bandwidths == DEFAULT:
        return OURS, RINGS
    latencies = {kind: subject.latency_ns(kind) for kind in LinkKind}
    return OURS.with_latencies(latencies), RINGS.with_latencies(latencies)


def _check_all_linked(scene: Scene, what: str) -> None:
    """Raise UsageError if two ranks have no link: alltoall goes straight from each to each."""
    linked = {(link.src, link.dst) for link in scene.topology.links}
    devices = scene.topology.devices
    for src in range(scene.topology.size):
        apart = [
            devices[dst]
            for dst in range(scene.topology.size)
            if dst != src and (src, dst) not in linked
        ]
        if apart:
            raise UsageError(
                f"alltoall needs a link between every two {what}s: {devices[src]} has none to "
                f"{format_gpus(apart)}; --links all may have them"
            )
