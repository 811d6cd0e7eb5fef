"""The trees that are worth a try for a collective, whatever its size.

Large data wants the best rate; a few per cent of rate given up may save trees, and so depth and
steps; small data wants few hops. Where PCIe lies beside a fabric, trees over all links are faster
by its rate and slower by its latency, so the fabric's own trees stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from blinkrun.errors import UnreachableRankError, UsageError
from blinkrun.planner.certificate import Certificate, check_certificate
from blinkrun.planner.make import in_shares
from blinkrun.planner.packing import Flow, Packing
from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.planner.predict import Timing, Trees
from blinkrun.planner.predict import candidates as planned_candidates
from blinkrun.planner.solve import DEFAULT_LOSS, pack
from blinkrun.select.fair import fair_packing
from blinkrun.topology.graph import LinkKind, Topology, select_links
from blinkrun.topology.model import link_latency_ns
from blinkrun.types import Collective, Rank

_NEARLY = Fraction(1, 50)  # of the best rate given up for fewer trees
_CHANNELS = (12, 24, 48)  # at most, in which trees get what links grant them by themselves
FABRIC_ONLY = "over the fabric"  # added to the name of trees that leave PCIe out


@dataclass(frozen=True, slots=True)
class Candidate:
    """Trees to try.

    Attributes
    ----------
    trees : str
        What they are, for people: ``packed``, ``packed in 24 channels`` (see `fair`), ``few
        packed``, ``one-hop`` or ``shallow``, and ``… over the fabric``.
    packing : PlannedPacking
    """

    trees: str
    packing: PlannedPacking


def candidates_for(
    topology: Topology, collective: Collective, root: Rank = 0
) -> tuple[Candidate, ...]:
    """Return the trees that may be best for some size; the packing of the best rate comes first.

    Parameters
    ----------
    topology : Topology
        At least two ranks, without relays.
    collective : Collective
        One that runs over trees.
    root : Rank, default 0
        Of broadcast and reduce; ignored elsewhere.

    Returns
    -------
    tuple of Candidate
        No two with the same trees. The bounds of all are those of all links.

    Raises
    ------
    UsageError
        If `collective` runs over no trees.
    UnreachableRankError
        If the links do not join all ranks.
    PlanError
        As `pack`.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> found = candidates_for(machine("dgx-1v", "all"), Collective.BROADCAST)
    >>> [(one.trees, len(one.packing.trees), int(one.packing.rate)) for one in found][:2]
    [('packed', 27, 143000), ('packed in 12 channels', 12, 138000)]
    """
    if collective in (Collective.BARRIER, Collective.ALLTOALL):
        raise UsageError(f"{collective.label} runs over no trees, so there are none to choose")
    flow = Flow(collective.label)
    at = root if flow.is_rooted else None
    bound, found = _over(topology, flow, at)
    fabric = select_links(topology, [kind for kind in LinkKind if kind.is_fabric])
    if 0 < len(fabric.links) < len(topology.links):
        with suppress(UnreachableRankError):  # the fabric does not join all ranks
            found += [
                Candidate(f"{one.trees} {FABRIC_ONLY}", replace(one.packing, bound=bound))
                for one in _over(fabric, flow, at)[1]
            ]
    kept: dict[tuple[PlannedTree, ...], Candidate] = {}
    for one in found:
        kept.setdefault(one.packing.trees, one)
    return tuple(kept.values())


def _over(topology: Topology, flow: Flow, root: Rank | None) -> tuple[Fraction, list[Candidate]]:
    """Return the bound of a topology, and the trees over all of its links."""
    best, certificate = pack(topology, flow, root, loss=Fraction(0))
    nearly, _ = pack(topology, flow, root, loss=_NEARLY)
    few, _ = pack(topology, flow, root, loss=DEFAULT_LOSS)
    found = [_named("packed", in_shares(topology, best, certificate))]
    for most in _CHANNELS if found[0].packing.depth > 1 else ():
        fair = fair_packing(topology, (best, nearly, few), most_channels=most)
        name = f"packed in {len(fair.trees)} channels"
        found.append(_named(name, in_shares(topology, fair, certificate)))
    found += [
        _named("few packed", in_shares(topology, few, certificate)),
        *_quick(topology, few, certificate),
    ]
    return check_certificate(topology, certificate), found


def _quick(topology: Topology, few: Packing, certificate: Certificate) -> Iterator[Candidate]:
    """Yield the trees of few hops."""
    for option in planned_candidates(Timing(topology, link_latency_ns), few):
        if option.trees is not Trees.PACKED:
            yield _named(option.trees.value, in_shares(topology, option.packing, certificate))


def _named(trees: str, packing: PlannedPacking) -> Candidate:
    return Candidate(Trees.ONEHOP.value if packing.depth == 1 else trees, packing)
