"""The trees that are worth a try for a collective, whatever its size.

Large data wants the best rate; a few per cent of rate given up may save trees, and so depth and
steps; small data wants few hops. Where PCIe lies beside a fabric, trees over all links are faster
by its rate and slower by its latency, so the fabric's own trees stand beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from blinkrun.errors import UnreachableRankError, UsageError
from blinkrun.planner.certificate import Certificate
from blinkrun.planner.make import in_shares
from blinkrun.planner.packing import Flow, Packing, Tree
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
        What they are, for people: ``packed in 24 channels`` (see `fair`), ``few packed``,
        ``one-hop``, ``shallow``, or ``packed`` where it is none of these, and ``… over the
        fabric``.
    packing : PlannedPacking
    """

    trees: str
    packing: PlannedPacking


def candidates_for(
    topology: Topology, collective: Collective, root: Rank = 0
) -> tuple[Candidate, ...]:
    """Return the trees that may be best for some size.

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
    >>> [(one.trees, one.packing.depth, int(one.packing.rate)) for one in found][:2]
    [('packed in 8 channels', 5, 143000), ('packed in 20 channels', 5, 143000)]
    """
    if collective in (Collective.BARRIER, Collective.ALLTOALL):
        raise UsageError(f"{collective.label} runs over no trees, so there are none to choose")
    flow = Flow(collective.label)
    at = root if flow.is_rooted else None
    best, certificate = pack(topology, flow, at, loss=Fraction(0))
    fabric = _part(topology, is_fabric=True)
    others = _part(topology, is_fabric=False)
    found = _over(topology, topology, certificate, [_hybrid(topology, (fabric, others), best)])
    if fabric is not None and others is not None:
        with suppress(UnreachableRankError):  # the fabric does not join all ranks
            found += [
                replace(one, trees=f"{one.trees} {FABRIC_ONLY}")
                for one in _over(topology, fabric, certificate, [])
            ]
    kept: dict[tuple[PlannedTree, ...], Candidate] = {}
    for one in found:
        kept.setdefault(one.packing.trees, one)
    return tuple(kept.values())


def _part(topology: Topology, *, is_fabric: bool) -> Topology | None:
    """Return the topology with its fabric alone, or without it; None if that is all or nothing."""
    kinds = [kind for kind in LinkKind if kind.is_fabric is is_fabric]
    part = select_links(topology, kinds)
    return part if 0 < len(part.links) < len(topology.links) else None


def _over(
    topology: Topology,
    part: Topology,
    certificate: Certificate,
    more: Sequence[Packing | None],
) -> list[Candidate]:
    """Return the trees over a part of the links, or all, with the bound of all links.

    Raises
    ------
    UnreachableRankError
        If they do not join all ranks.
    """
    flow, root = certificate.flow, certificate.root
    best, nearly, few = (
        _on(topology, part, pack(part, flow, root, loss=loss)[0])
        for loss in (Fraction(0), _NEARLY, DEFAULT_LOSS)
    )
    starts = [best, nearly, few, *(one for one in more if one is not None)]
    is_deep = max(tree.depth for tree in in_shares(topology, best, certificate).trees) > 1
    # Stars of equal rates move their parts at once: they need no second channel.
    is_even = not is_deep and len(set(best.rates)) == 1
    found = []
    roots = topology.size if flow.is_joint else 1
    for most in () if is_even else _CHANNELS:
        fair = fair_packing(topology, starts, most_channels=max(2, most // roots))
        packing = in_shares(topology, fair, certificate)
        if packing.depth > 1 or not is_deep:
            found.append(Candidate(f"packed in {len(fair.trees)} channels", packing))
    if not is_deep:
        found.append(_named("packed", in_shares(topology, best, certificate)))
    found.append(_named("few packed", in_shares(topology, few, certificate)))
    for option in planned_candidates(Timing(topology, link_latency_ns), few):
        if option.trees is not Trees.PACKED:
            packing = in_shares(topology, option.packing, certificate)
            found.append(_named(option.trees.value, packing))
    return found


def _hybrid(
    topology: Topology, parts: tuple[Topology | None, Topology | None], best: Packing
) -> Packing | None:
    """Return the best trees over the fabric and the best over the rest, side by side."""
    packed = []
    for part in parts:
        if part is None:
            return None
        try:
            packing, _ = pack(part, best.flow, best.root, loss=Fraction(0))
        except UnreachableRankError:  # these links alone do not join all ranks
            return None
        packed.append(_on(topology, part, packing))
    one, other = packed
    return Packing(best.flow, best.root, one.trees + other.trees, one.rates + other.rates)


def _on(topology: Topology, part: Topology, packing: Packing) -> Packing:
    """Return a packing of a part of the links with the whole topology's numbers for them."""
    if part is topology:
        return packing
    at = {link: number for number, link in enumerate(topology.links)}
    trees = tuple(
        Tree(
            tree.root,
            tuple(
                replace(edge, links=tuple(sorted(at[part.links[index]] for index in edge.links)))
                for edge in tree.edges
            ),
        )
        for tree in packing.trees
    )
    return replace(packing, trees=trees)


def _named(trees: str, packing: PlannedPacking) -> Candidate:
    return Candidate(Trees.ONEHOP.value if packing.depth == 1 else trees, packing)
