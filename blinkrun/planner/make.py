"""From a topology to the whole plan: every collective, every root, in whole shares."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import lcm

from blinkrun.planner.certificate import Certificate, check_certificate
from blinkrun.planner.network import network_of
from blinkrun.planner.packing import Flow, Packing, check_packing, fastest_rate
from blinkrun.planner.plan import Plan, PlannedPacking, PlannedTree
from blinkrun.planner.solve import DEFAULT_LOSS, ROUNDING, pack
from blinkrun.planner.symmetry import Renaming, Shape, find_renaming, shape_of
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank

FEW_SHARES = 4096  # more make no better plan, and are multiplied with element counts in 64 bits
_MORE_SHARES = (FEW_SHARES, FEW_SHARES << 4, FEW_SHARES << 8)


def make_plan(topology: Topology, *, loss: Fraction = DEFAULT_LOSS) -> Plan:
    """Return the plan of all collectives on `topology`.

    Parameters
    ----------
    topology : Topology
        Any number of ranks, joined by links.
    loss : Fraction, default 1/20
        Part of the best rate that may be given up for fewer trees; 0 for the best rate.

    Returns
    -------
    Plan
        Packings and certificates have been checked exactly. Equal input gives an equal plan.

    Raises
    ------
    UnreachableRankError
        If the links do not join all ranks.
    PlanError
        If `loss` is not in [0, 1).

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> plan = make_plan(machine("dgx-2"))
    >>> len(plan.allreduce.trees), plan.allreduce.depth, plan.allreduce.rate
    (16, 1, Fraction(16, 5))
    """
    if topology.size == 1:
        tree = PlannedTree(root=0, parents=(-1,), start=0, stop=1)
        alone = PlannedPacking(1, (tree,), Fraction(0), Fraction(0), topology.unit)
        both, down, up = alone, [alone], [alone]
    else:
        both, down, up = _pack_all(topology, loss)
    return Plan(
        size=topology.size,
        allreduce=both,
        broadcast=tuple(down),
        reduce=tuple(up),
        topology_hash=topology.content_hash,
        machine=topology.name,
        loss=loss,
    )


def _pack_all(
    topology: Topology, loss: Fraction
) -> tuple[PlannedPacking, list[PlannedPacking], list[PlannedPacking]]:
    """Return the packings of allreduce, and of broadcast and reduce by root."""
    both = in_shares(topology, *pack(topology, Flow.BOTH, loss=loss))
    solved: list[tuple[Shape, Rank, PlannedPacking]] = []
    by_flow: dict[Flow, list[PlannedPacking]] = {Flow.DOWN: [], Flow.UP: []}
    for flow, packings in by_flow.items():
        shape = shape_of(network_of(topology, flow))
        for root in range(topology.size):
            planned = _renamed(solved, shape, root)
            if planned is None:
                planned = in_shares(topology, *pack(topology, flow, root, loss=loss))
                solved.append((shape, root, planned))
            packings.append(planned)
    return both, by_flow[Flow.DOWN], by_flow[Flow.UP]


def _renamed(
    solved: list[tuple[Shape, Rank, PlannedPacking]], shape: Shape, root: Rank
) -> PlannedPacking | None:
    """Return the solution of a root that looks the same, with its ranks renamed."""
    for other, from_root, planned in solved:
        ranks = find_renaming(other, shape, from_root, root)
        if ranks is not None:
            return replace(planned, trees=tuple(_rename(tree, ranks) for tree in planned.trees))
    return None


def _rename(tree: PlannedTree, ranks: Renaming) -> PlannedTree:
    parents = [-1] * len(ranks)
    for child, parent in enumerate(tree.parents):
        if parent >= 0:
            parents[ranks[child]] = ranks[parent]
    return PlannedTree(ranks[tree.root], tuple(parents), tree.start, tree.stop)


def in_shares(topology: Topology, packing: Packing, certificate: Certificate) -> PlannedPacking:
    """Return the packing with every tree carrying a whole number of shares.

    Rates with a small common denominator stay as they are. Others are rounded, to so many shares
    that less than a thousandth of the rate is lost.

    Raises
    ------
    PlanError
        If the packing does not fit the topology or the certificate does not hold.
    """
    check_packing(topology, packing)
    bound = check_certificate(topology, certificate)
    whole = lcm(*((rate / packing.rate).denominator for rate in packing.rates))
    for shares in (whole,) if whole <= FEW_SHARES else _MORE_SHARES:
        rounded = _rounded(packing, shares)
        rate = fastest_rate(topology, rounded)
        if rate >= packing.rate * (1 - ROUNDING):
            break
    trees = []
    at = 0
    for tree, part in zip(rounded.trees, rounded.rates, strict=True):
        stop = at + int(part * shares)
        trees.append(PlannedTree(tree.root, tree.parents(topology.size), at, stop))
        at = stop
    return PlannedPacking(shares, tuple(trees), rate, bound, topology.unit)


def _rounded(packing: Packing, shares: int) -> Packing:
    """Return the packing with the total rate 1 and every rate a multiple of 1 / `shares`."""
    parts = [rate / packing.rate * shares for rate in packing.rates]
    counts = _round_to_total(parts, shares)
    kept = [(tree, count) for tree, count in zip(packing.trees, counts, strict=True) if count]
    return replace(
        packing,
        trees=tuple(tree for tree, _ in kept),
        rates=tuple(Fraction(count, shares) for _, count in kept),
    )


def _round_to_total(parts: list[Fraction], total: int) -> list[int]:
    """Return whole numbers close to `parts` with the sum `total`, the largest remainders first.

    >>> _round_to_total([Fraction(5, 3), Fraction(4, 3)], 3)
    [2, 1]
    """
    whole = [int(part) for part in parts]
    missing = total - sum(whole)
    by_remainder = sorted(range(len(parts)), key=lambda at: (whole[at] - parts[at], at))
    for at in by_remainder[:missing]:
        whole[at] += 1
    return whole
