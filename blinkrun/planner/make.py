"""From a topology to the whole plan: every collective, every root, in whole shares."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import lcm

from blinkrun.errors import PlanError
from blinkrun.planner.certificate import Certificate, check_certificate
from blinkrun.planner.network import network_of
from blinkrun.planner.packing import Flow, Packing, Tree, check_packing, fastest_rate
from blinkrun.planner.plan import Plan, PlannedPacking, PlannedTree
from blinkrun.planner.solve import DEFAULT_LOSS, ROUNDING, pack
from blinkrun.planner.symmetry import Renaming, Shape, find_renaming, shape_of
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank

FEW_SHARES = 4096  # more make no better plan, and are multiplied with element counts in 64 bits
_MORE_SHARES = (FEW_SHARES, FEW_SHARES << 4, FEW_SHARES << 8)

_Solved = tuple[Shape, Rank, PlannedPacking]


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
        If `loss` is not in [0, 1), or `topology` has relays, which no program can use.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> plan = make_plan(machine("dgx-2"))
    >>> len(plan.allreduce.trees), plan.allreduce.depth, plan.allreduce.rate
    (16, 1, Fraction(16, 5))
    """
    if topology.num_relays:
        raise PlanError(f"{topology.name}: {topology.num_relays} relays; plans that run have none")
    if topology.size == 1:
        return _plan_alone(topology, loss)
    broadcast, reduce = _pack_rooted(topology, loss)
    allgather, reducescatter = _pack_joint(topology, loss)
    return Plan(
        size=topology.size,
        allreduce=in_shares(topology, *pack(topology, Flow.BOTH, loss=loss)),
        broadcast=broadcast,
        reduce=reduce,
        allgather=allgather,
        reducescatter=reducescatter,
        topology_hash=topology.content_hash,
        machine=topology.name,
        loss=loss,
    )


def _plan_alone(topology: Topology, loss: Fraction) -> Plan:
    """Return the plan of a single rank, which has nobody to send to."""
    tree = PlannedTree(root=0, parents=(-1,), start=0, stop=1)
    alone = PlannedPacking(1, (tree,), Fraction(0), Fraction(0), topology.unit)
    joint = replace(alone, joint=True)
    return Plan(
        size=1,
        allreduce=alone,
        broadcast=(alone,),
        reduce=(alone,),
        allgather=joint,
        reducescatter=joint,
        topology_hash=topology.content_hash,
        machine=topology.name,
        loss=loss,
    )


def _pack_rooted(
    topology: Topology, loss: Fraction
) -> tuple[tuple[PlannedPacking, ...], tuple[PlannedPacking, ...]]:
    """Return the packings of broadcast and of reduce by root."""
    solved: list[_Solved] = []
    by_flow: dict[Flow, list[PlannedPacking]] = {Flow.DOWN: [], Flow.UP: []}
    for flow, packings in by_flow.items():
        shape = shape_of(network_of(topology, flow))
        for root in range(topology.size):
            planned = _renamed(solved, shape, root)
            if planned is None:
                planned = in_shares(topology, *pack(topology, flow, root, loss=loss))
                solved.append((shape, root, planned))
            packings.append(planned)
    return tuple(by_flow[Flow.DOWN]), tuple(by_flow[Flow.UP])


def _pack_joint(topology: Topology, loss: Fraction) -> tuple[PlannedPacking, PlannedPacking]:
    """Return the packings of allgather and reducescatter."""
    down = shape_of(network_of(topology, Flow.ALL_DOWN))
    up = shape_of(network_of(topology, Flow.ALL_UP))
    allgather = in_shares(topology, *pack(topology, Flow.ALL_DOWN, loss=loss))
    backwards = _renamed([(down, 0, allgather)], up, 0)
    if backwards is None:
        backwards = in_shares(topology, *pack(topology, Flow.ALL_UP, loss=loss))
    return allgather, backwards


def _renamed(solved: list[_Solved], shape: Shape, root: Rank) -> PlannedPacking | None:
    """Return the solution of a root that looks the same, with its ranks renamed."""
    for other, from_root, planned in solved:
        ranks = find_renaming(other, shape, from_root, root)
        if ranks is not None:
            turned = other.network.flow is not shape.network.flow
            trees = [_rename(tree, ranks, turned=turned) for tree in planned.trees]
            by_root = sorted(trees, key=lambda tree: (tree.root, tree.start))
            return replace(planned, trees=tuple(by_root if planned.joint else trees))
    return None


def _rename(tree: PlannedTree, ranks: Renaming, *, turned: bool) -> PlannedTree:
    """Return the tree of other ranks, with the kinds of its links, which may run backwards."""
    parents = [-1] * len(ranks)
    up = [""] * len(ranks)
    down = [""] * len(ranks)
    for child, parent in enumerate(tree.parents):
        if parent >= 0:
            at = ranks[child]
            parents[at] = ranks[parent]
            up[at], down[at] = tree.up[child], tree.down[child]
    ways = (tuple(down), tuple(up)) if turned else (tuple(up), tuple(down))
    return PlannedTree(ranks[tree.root], tuple(parents), tree.start, tree.stop, *ways)


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
    parts = _parts(packing)
    whole = lcm(*(part.denominator for part in parts))
    for shares in (whole,) if whole <= FEW_SHARES else _MORE_SHARES:
        rounded = _rounded(packing, parts, shares)
        rate = fastest_rate(topology, rounded)
        if rate >= packing.rate * (1 - ROUNDING):
            break
    trees = []
    at = 0
    for tree, part in zip(rounded.trees, rounded.rates, strict=True):
        at %= shares  # every root's block begins anew
        stop = at + int(part * shares)
        trees.append(_planned(topology, tree, at, stop))
        at = stop
    return PlannedPacking(
        shares, tuple(trees), rate, bound, topology.unit, joint=packing.flow.is_joint
    )


def _planned(topology: Topology, tree: Tree, start: int, stop: int) -> PlannedTree:
    """Return the tree with the kinds of its links."""
    kinds = {"up": [""] * topology.size, "down": [""] * topology.size}
    for edge in tree.edges:
        for index in edge.links:
            link = topology.links[index]
            kinds["up" if link.src == edge.child else "down"][edge.child] = link.kind.value
    parents = tree.parents(topology.size)
    return PlannedTree(tree.root, parents, start, stop, tuple(kinds["up"]), tuple(kinds["down"]))


def _parts(packing: Packing) -> list[Fraction]:
    """Return which part of the data each tree carries, or of its root's block."""
    totals = packing.rates_by_root()
    return [
        rate / (totals[tree.root] if packing.flow.is_joint else packing.rate)
        for tree, rate in zip(packing.trees, packing.rates, strict=True)
    ]


def _rounded(packing: Packing, parts: list[Fraction], shares: int) -> Packing:
    """Return the packing with every part a multiple of 1 / `shares`, by root where it is joint."""
    groups: dict[Rank | None, list[int]] = {}
    for at, tree in enumerate(packing.trees):
        groups.setdefault(tree.root if packing.flow.is_joint else None, []).append(at)
    kept: list[tuple[Tree, int]] = []
    for root in sorted(groups, key=lambda root: root or 0):
        counts = _round_to_total([parts[at] * shares for at in groups[root]], shares)
        kept += [
            (packing.trees[at], count)
            for at, count in zip(groups[root], counts, strict=True)
            if count
        ]
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
