"""From options and a machine to a plan with all that is said of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from blinkrun.cli.plan_options import PlanOptions
from blinkrun.cli.subject import Subject, check_joined, check_ranks
from blinkrun.errors import UsageError
from blinkrun.planner.certificate import Certificate
from blinkrun.planner.method import Method, pack_by, pack_paper
from blinkrun.planner.packing import Flow, Packing
from blinkrun.planner.packing_json import packing_from_json, packing_to_json
from blinkrun.planner.predict import SIZES, Timing
from blinkrun.planner.report import LANE, Planned, as_json, times_of
from blinkrun.planner.rings import ring_peer
from blinkrun.planner.store import cached, command_cache_dir
from blinkrun.topology.graph import LinkKind, Topology, induce
from blinkrun.topology.model import LinkSet
from blinkrun.types import Rank


@dataclass(frozen=True, slots=True)
class Job:
    """The ranks of a job and what joins them.

    Attributes
    ----------
    flow : Flow
    topology : Topology
        Ranks, then relays.
    root : Rank or None
        None for collectives without one.
    rings : Topology
        What a ring library may use: the links of the plan, and PCIe where NVLink closes no ring;
        in MB/s, without relays.
    """

    flow: Flow
    topology: Topology
    root: Rank | None
    rings: Topology


def report_of(subject: Subject, options: PlanOptions) -> dict[str, Any]:
    """Return the plan as ``blinkrun plan --json`` prints it.

    Raises
    ------
    UsageError
        If the options do not fit the machine, or its links do not join the ranks.
    """
    job = job_of(subject, options)
    planned = plan_job(subject, job, options)
    report = as_json(planned) | {
        "what": subject.what,
        "links": options.links or links_of(link.kind for link in job.topology.links),
        "method": options.method,
        "loss": str(options.loss),
    }
    if options.method == Method.PAPER and job.topology.unit != LANE:
        report["hybrid"] = _hybrid(job, options.loss)
    return report


def job_of(subject: Subject, options: PlanOptions) -> Job:
    """Return the job that `options` ask for, checked.

    Raises
    ------
    UsageError
        If a rank does not exist, there is one alone, or nothing joins them.
    """
    links = LinkSet(options.links or LinkSet.ALL)
    flow = Flow(options.collective)
    ranks = subject.usual if options.gpus is None else options.gpus
    whole = subject.topology(links)
    check_ranks(subject, "--gpus", ranks)
    check_ranks(subject, "--relays", options.relays)
    check_ranks(subject, "--root", () if options.root is None else (options.root,))
    if len(ranks) < 2:
        raise UsageError(f"{flow} of {subject.what} {ranks[0]} alone: need at least two")
    topology = induce(whole, ranks, options.relays)
    check_joined(subject, topology, whole, flow=flow, links=links)
    root = ranks.index(ranks[0] if options.root is None else options.root)
    beside = LinkSet.PCIE if links is LinkSet.PCIE else LinkSet.ALL
    rings = induce(whole if links is beside else subject.topology(beside), ranks)
    return Job(flow, topology, root if flow.is_rooted else None, rings)


def plan_job(subject: Subject, job: Job, options: PlanOptions) -> Planned:
    """Return the plan of a job, with what a ring library gets and the times.

    Raises
    ------
    UsageError
        If the method does not apply, or the plan cache that is named cannot be used.
    """
    lane = subject.lane_mb_per_s
    unit_mb_per_s = lane if job.topology.unit == LANE else 1
    peer = ring_peer(job.rings, job.flow, job.root, lane=lane or None)
    packing, certificate = _pack(job, options, peer.rate / unit_mb_per_s)
    times = times_of(
        Timing(job.topology, subject.latency_ns, unit_mb_per_s),
        packing,
        Timing(job.rings, subject.latency_ns),
        peer,
    )
    return Planned(job.topology, packing, certificate, lane, peer, times)


def _hybrid(job: Job, loss: Fraction) -> list[dict[str, Any]]:
    """Return how the paper splits data over NVLink and PCIe, which it packs apart."""
    both = pack_paper(job.topology, job.flow, job.root, loss=loss)
    splits = [(size, both.split(size)) for size in SIZES]
    return [
        {
            "bytes": size,
            "nvlink_bytes": split.nvlink_bytes,
            "pcie_bytes": split.pcie_bytes,
            "seconds": split.time_ns / 1e9,
        }
        for size, split in splits
    ]


def _pack(job: Job, options: PlanOptions, floor: Fraction) -> tuple[Packing, Certificate]:
    """Return the packing, kept from an earlier run if it was planned before.

    The exact plan gives nothing up below the rate of rings: fewer trees are not worth that.
    """
    method = Method(options.method)
    key = f"{method} {options.loss} {floor} {job.flow} {job.root} {job.topology.content_hash}"

    def make() -> tuple[Packing, Certificate]:
        return pack_by(method, job.topology, job.flow, job.root, loss=options.loss, floor=floor)

    return cached(
        command_cache_dir(),
        f"packing {key}",
        make,
        encode=packing_to_json,
        decode=packing_from_json,
    )


def links_of(kinds: Iterable[LinkKind]) -> str:
    """Return what of a machine's links there are, as ``--links`` calls it.

    >>> links_of([LinkKind.XGMI, LinkKind.STAGED]), links_of([LinkKind.PCIE])
    ('all', 'pcie')
    """
    found = set(kinds)
    if LinkKind.SHM in found:
        return "shm"
    fabric = any(kind.is_fabric for kind in found)
    host = any(not kind.is_fabric for kind in found)
    return "all" if fabric and host else "nvlink" if fabric else "pcie"
