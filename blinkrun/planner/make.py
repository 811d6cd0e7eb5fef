"""From a topology to the whole plan: every collective, every root, in whole shares."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

from blinkrun.planner.certificate import Certificate, check_certificate
from blinkrun.planner.network import Network, network_of
from blinkrun.planner.packing import Flow, Packing, check_packing, resource_loads
from blinkrun.planner.plan import Plan, PlannedPacking, PlannedTree
from blinkrun.planner.seeds import Packed
from blinkrun.planner.solve import DEFAULT_LOSS, as_packing, solve
from blinkrun.planner.symmetry import find_renaming
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank

MAX_SHARES = 4096  # the native core multiplies them with element counts in 64 bits


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
    network = network_of(topology, Flow.BOTH)
    both = in_shares(topology, *as_packing(topology, network, None, solve(network, None, loss)))
    solved: list[tuple[Network, Rank, Packed]] = []
    rooted: dict[Flow, list[PlannedPacking]] = {Flow.DOWN: [], Flow.UP: []}
    for flow, packings in rooted.items():
        network = network_of(topology, flow)
        for root in range(topology.size):
            packed = _carried(solved, network, root)
            if packed is None:
                packed = solve(network, root, loss)
                solved.append((network, root, packed))
            packings.append(in_shares(topology, *as_packing(topology, network, root, packed)))
    return both, rooted[Flow.DOWN], rooted[Flow.UP]


def _carried(
    solved: list[tuple[Network, Rank, Packed]], network: Network, root: Rank
) -> Packed | None:
    """Return the solution for a root that looks the same, renamed."""
    for other, from_root, packed in solved:
        renaming = find_renaming(other, network, from_root, root)
        if renaming is not None:
            return renaming.carry(packed)
    return None


def in_shares(topology: Topology, packing: Packing, certificate: Certificate) -> PlannedPacking:
    """Return the packing with every tree carrying a whole number of shares.

    Rates with a small common denominator stay as they are. Others are rounded to `MAX_SHARES`
    shares, and the rate is what the fullest resource allows then.

    Raises
    ------
    PlanError
        If the packing does not fit the topology or the certificate does not hold.
    """
    check_packing(topology, packing)
    bound = check_certificate(topology, certificate)
    parts = [rate / packing.rate for rate in packing.rates]
    shares = lcm(*(part.denominator for part in parts))
    shares = min(shares, MAX_SHARES)
    counts = _round_to_total([part * shares for part in parts], shares)
    kept = [(tree, count) for tree, count in zip(packing.trees, counts, strict=True) if count]
    rounded = Packing(
        flow=packing.flow,
        root=packing.root,
        trees=tuple(tree for tree, _ in kept),
        rates=tuple(Fraction(count, shares) for _, count in kept),
    )
    loads = resource_loads(topology, rounded)
    trees = []
    at = 0
    for tree, count in kept:
        trees.append(PlannedTree(tree.root, tree.parents(topology.size), at, at + count))
        at += count
    return PlannedPacking(
        shares=shares,
        trees=tuple(trees),
        rate=min(
            resource.capacity / loads[resource.name]
            for resource in topology.resources
            if resource.name in loads
        ),
        bound=bound,
        unit=topology.unit,
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
