"""A collective on an allocation of one of the paper's machines: our best run, the rings' best run.

Each case is simulated by itself, so that cases can run on all cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkrun.errors import InternalError
from blinkrun.paper.links import allocation, fabric_alone, lane_of
from blinkrun.paper.pool import mapped
from blinkrun.planner.certificate import check_certificate
from blinkrun.planner.compare import best_root
from blinkrun.planner.packing import Flow
from blinkrun.planner.rings import RingKind, ring_peer
from blinkrun.planner.solve import pack
from blinkrun.schedule.choice import Choice
from blinkrun.select.predict import best_run, ring_run
from blinkrun.simulator.cost import OURS, RINGS
from blinkrun.simulator.run import Run
from blinkrun.topology.graph import Topology
from blinkrun.types import Collective, Rank

FLOWS = {Collective.BROADCAST: Flow.DOWN, Collective.ALLREDUCE: Flow.BOTH}
_ANY = Fraction(1, 2)  # loss where only the bound is wanted
_CLOSE = Fraction(24, 25)  # of the bound: no other root is tried


@dataclass(frozen=True, slots=True)
class Case:
    """What is simulated.

    Attributes
    ----------
    machine : str
        As `links.allocation` knows it.
    gpus : tuple of int
    collective : Collective
        Broadcast or allreduce.
    size_bytes : int
    """

    machine: str
    gpus: tuple[int, ...]
    collective: Collective
    size_bytes: int

    @property
    def topology(self) -> Topology:
        """All links of the allocation."""
        return allocation(self.machine, self.gpus)


@dataclass(frozen=True, slots=True)
class Ours:
    """Our best run over some links.

    Attributes
    ----------
    root : int
        GPU that broadcasts; the first of the allocation for allreduce, which has none.
    choice : Choice
        Trees, channels, chunks.
    run : Run
    bound_gb_per_s : Fraction
        What no program exceeds on these links, by the planner's certificate.
    """

    root: int
    choice: Choice
    run: Run
    bound_gb_per_s: Fraction

    @property
    def gb_per_s(self) -> Fraction:
        """Bytes of the collective per ns."""
        return self.run.algbw_gb_per_s


@dataclass(frozen=True, slots=True)
class Rings:
    """The ring library's best run: its name for the program, the rings, and the run."""

    name: str
    kind: RingKind
    count: int
    run: Run

    @property
    def gb_per_s(self) -> Fraction:
        """Bytes of the collective per ns."""
        return self.run.algbw_gb_per_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """All of a case: over all links, over NVLink alone, and by rings."""

    case: Case
    everything: Ours
    nvlink: Ours
    rings: Rings


def outcome(case: Case) -> Outcome:
    """Return what the simulator makes of a case."""
    return Outcome(
        case,
        everything=ours(case.topology, case),
        nvlink=ours(fabric_alone(case.topology), case),
        rings=rings(case.topology, case),
    )


_known: dict[Case, Outcome] = {}


def outcomes(cases: Sequence[Case]) -> list[Outcome]:
    """Return what the simulator makes of cases, on all cores; none is simulated twice."""
    new = [case for case in dict.fromkeys(cases) if case not in _known]
    _known.update(zip(new, mapped(outcome, new), strict=True))
    return [_known[case] for case in cases]


def root_of(links: Topology, collective: Collective) -> Rank:
    """Return the rank that broadcasts: the first with the best rate; 0 where there is no root."""
    return best_root(links, FLOWS[collective]) if collective.is_rooted else 0


def ours(links: Topology, case: Case) -> Ours:
    """Return our best run over these links of the case's allocation.

    The paper names no root. Of those with the best bound it is the first whose trees come close to
    that, or the best of all.
    """
    best: Ours | None = None
    for root, bound in _roots(links, case.collective):
        choice, run = best_run(
            links, case.collective, root=root, size_bytes=case.size_bytes, cost=OURS
        )
        found = Ours(links.devices[root], choice, run, bound)
        if best is None or found.gb_per_s > best.gb_per_s:
            best = found
        if best.gb_per_s >= _CLOSE * bound:
            break
    assert best is not None  # there is always a root
    return best


def _roots(links: Topology, collective: Collective) -> list[tuple[Rank, Fraction]]:
    """Return the roots with the best bound and that bound, in GB/s; 0 where there is no root."""
    flow = FLOWS[collective]
    bounds = {}
    for root in range(links.size if collective.is_rooted else 1):
        _, certificate = pack(links, flow, root if collective.is_rooted else None, loss=_ANY)
        bounds[root] = check_certificate(links, certificate) / 1000
    most = max(bounds.values())
    return [(root, bound) for root, bound in bounds.items() if bound == most]


def rings(links: Topology, case: Case) -> Rings:
    """Return the ring library's best run over these links.

    Raises
    ------
    InternalError
        If no ring joins the GPUs; PCIe always closes one on the paper's machines.
    """
    root = root_of(links, case.collective)
    lane = lane_of(case.machine)
    found = ring_run(
        links, case.collective, root=root, size_bytes=case.size_bytes, lane=lane, cost=RINGS
    )
    if found is None:
        raise InternalError(f"no ring joins GPUs {case.gpus} of {case.machine}")
    flow = FLOWS[case.collective]
    peer = ring_peer(links, flow, root if flow.is_rooted else None, lane=lane)
    return Rings(found[0], peer.kind, len(peer.rings), found[1])
