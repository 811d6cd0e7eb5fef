"""What is planned on: a machine's GPUs, or the CPU ranks of a host without any."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from blinkrun.cli.figures import format_gpus
from blinkrun.cli.source import Source, load, load_bandwidths
from blinkrun.errors import UsageError
from blinkrun.log import say
from blinkrun.planner.packing import Flow
from blinkrun.planner.parts import parts
from blinkrun.topology.bandwidth import Bandwidths
from blinkrun.topology.cpu import Host, cpu_topology
from blinkrun.topology.fabric import lane_mb_per_s
from blinkrun.topology.graph import LinkKind, Topology, induce
from blinkrun.topology.machine import Machine
from blinkrun.topology.model import LinkSet, link_latency_ns, topology_of

_MOST_TRIED_RELAYS = 2


@dataclass(frozen=True, slots=True)
class Subject:
    """A machine or a host, with the bandwidths that it is taken to have.

    Attributes
    ----------
    found : Machine or Host
        A Host where there is no GPU.
    bandwidths : Bandwidths
    num_ranks : int
        How many ranks there are to choose from: GPUs, or processes on a Host.
    usual : tuple of int
        Those that are meant where none are named: all, on this machine the visible ones.
    """

    found: Machine | Host
    bandwidths: Bandwidths
    num_ranks: int
    usual: tuple[int, ...]

    @property
    def name(self) -> str:
        """What to call it."""
        return self.found.name if isinstance(self.found, Machine) else "this host"

    @property
    def what(self) -> str:
        """What its ranks are called."""
        return "GPU" if isinstance(self.found, Machine) else "rank"

    @property
    def lane_mb_per_s(self) -> int:
        """What a lane of its fabric is worth, 0 without one."""
        if isinstance(self.found, Host):
            return 0
        return lane_mb_per_s(self.found, self.bandwidths)

    def named(self, ranks: Sequence[int]) -> str:
        """Return ranks in words."""
        return f"{self.what}{'s' if len(ranks) > 1 else ''} {format_gpus(ranks)}"

    def topology(self, links: LinkSet) -> Topology:
        """Return all ranks with these links.

        Raises
        ------
        UsageError
            If there are no such links.
        """
        if isinstance(self.found, Machine):
            return topology_of(self.found, links, self.bandwidths)
        if links is not LinkSet.ALL:
            raise UsageError(f"--links {links}: there is no GPU here, ranks share memory")
        return cpu_topology(self.found, self.num_ranks)

    def latency_ns(self, kind: LinkKind) -> int:
        """Return the latency of a hop."""
        return link_latency_ns(kind, self.bandwidths)


def subject_of(source: Source, named: Sequence[int] = ()) -> Subject:
    """Return what `source` means; its notes go to stderr.

    Parameters
    ----------
    source : Source
    named : sequence of int, optional
        Ranks that are asked for: a host has as many as needed, at least one per core.

    Raises
    ------
    UsageError
        If it cannot be read (as ReportError, with the line), or has too few ranks.
    """
    bandwidths = load_bandwidths(source)
    found = load(source)
    if isinstance(found, Host):
        usual = max(2, found.num_cores())
        most = max(usual, *(rank + 1 for rank in named)) if named else usual
        return Subject(found, bandwidths, most, tuple(range(usual)))
    for note in found.notes:
        say(f"note: {note}")
    gpus = tuple(range(found.num_gpus))
    return Subject(found, bandwidths, len(gpus), _visible(found) if source.name is None else gpus)


def _visible(machine: Machine) -> tuple[int, ...]:
    """Return the GPUs of this machine that CUDA_VISIBLE_DEVICES and its like leave."""
    from blinkrun.topology.visible import visible  # noqa: PLC0415

    return visible(machine, os.environ) or tuple(range(machine.num_gpus))


def check_ranks(subject: Subject, flag: str, ranks: Sequence[int]) -> None:
    """Raise UsageError if one of `ranks` does not exist."""
    for rank in ranks:
        if rank >= subject.num_ranks:
            last = subject.num_ranks - 1
            has = subject.named(range(last + 1)) if last else f"{subject.what} 0 alone"
            raise UsageError(f"{flag} {rank}: {subject.name} has {has}")


def check_joined(  # noqa: PLR0913 - all keyword-only but the three topologies
    subject: Subject,
    job: Topology,
    whole: Topology,
    *,
    flow: Flow,
    links: LinkSet,
    may_relay: bool = True,
) -> None:
    """Raise UsageError, with what would help, if the links of `job` do not join its ranks.

    Parameters
    ----------
    subject : Subject
    job : Topology
        The ranks with their relays.
    whole : Topology
        All GPUs with these links.
    flow : Flow
    links : LinkSet
        What they were chosen by.
    may_relay : bool, default True
        Whether the command takes ``--relays``.
    """
    apart = parts(job, flow)
    if len(apart) == 1:
        return
    ranks, relays = job.devices[: job.size], job.devices[job.size :]
    groups = [subject.named([job.devices[rank] for rank in part]) for part in apart]
    hints = []
    if links is not LinkSet.ALL:
        everything = induce(subject.topology(LinkSet.ALL), ranks, relays)
        hints += ["--links all"] if len(parts(everything, flow)) == 1 else []
    helpers = _helpers(whole, ranks, relays, flow) if may_relay else ()
    hints += [f"--relays {format_gpus(helpers)}"] if helpers else []
    over = {LinkSet.NVLINK: "NVLink", LinkSet.PCIE: "PCIe", LinkSet.ALL: "any link"}[links]
    hint = f"; {' or '.join(hints)} would join them" if hints else ""
    raise UsageError(f"no path over {over} between {' and '.join(groups)}{hint}")


def _helpers(
    whole: Topology, ranks: Sequence[int], relays: Sequence[int], flow: Flow
) -> tuple[int, ...]:
    """Return the fewest relays, at most `_MOST_TRIED_RELAYS` or else all, that join the ranks."""
    idle = [device for device in whole.devices if device not in (*ranks, *relays)]
    tried = [more for n in range(1, _MOST_TRIED_RELAYS + 1) for more in combinations(idle, n)]
    for more in (*tried, tuple(idle)):
        chosen = (*relays, *more)
        if len(parts(induce(whole, ranks, chosen), flow)) == 1:
            return chosen
    return ()
