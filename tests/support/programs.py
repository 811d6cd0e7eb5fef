"""Plans and programs to test with: stars, chains, random trees; strategies that draw them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import lcm
from typing import Any

from hypothesis import strategies as st

from blinkrun.planner.plan import Plan, PlannedPacking, PlannedTree
from blinkrun.schedule.ir import Addressing, Program
from blinkrun.schedule.lower import lower
from blinkrun.schedule.lower_hosts import lower_eager_hosts, lower_hosts
from blinkrun.schedule.verify import verify
from blinkrun.types import Collective

Shape = tuple[int, tuple[int, ...]]  # root, parents


def star(size: int, root: int) -> Shape:
    return root, tuple(-1 if rank == root else root for rank in range(size))


def chain(size: int, root: int) -> Shape:
    """root -> root+1 -> …, round the ranks."""
    return root, tuple(-1 if rank == root else (rank - 1) % size for rank in range(size))


def packing(shapes: list[Shape], weights: list[int] | None = None) -> PlannedPacking:
    trees = []
    at = 0
    for (root, parents), weight in zip(shapes, weights or [1] * len(shapes), strict=True):
        trees.append(PlannedTree(root, parents, at, at + weight))
        at += weight
    return PlannedPacking(at, tuple(trees), Fraction(1), Fraction(1), "lane")


def joint(packings: list[PlannedPacking]) -> PlannedPacking:
    """The packings of all roots as one, with each block cut into as many shares."""
    shares = lcm(*(each.shares for each in packings))
    trees = [
        replace(
            tree, start=tree.start * shares // each.shares, stop=tree.stop * shares // each.shares
        )
        for each in packings
        for tree in each.trees
    ]
    return PlannedPacking(shares, tuple(trees), Fraction(1), Fraction(1), "lane", joint=True)


def plan_of(allreduce: list[Shape], rooted: list[list[Shape]]) -> Plan:
    one_way = tuple(packing(shapes) for shapes in rooted)
    both_ways = joint(list(one_way))
    return Plan(len(rooted), packing(allreduce), one_way, one_way, both_ways, both_ways, "test")


def star_plan(size: int) -> Plan:
    """What a one-socket CPU host gets: a one-hop star at every rank."""
    stars = [star(size, root) for root in range(size)]
    return plan_of(stars, [[each] for each in stars])


def chain_plan(size: int) -> Plan:
    """The deepest trees there are, two per root for broadcast and reduce."""
    chains = [chain(size, root) for root in range(size)]
    return plan_of(chains, [[each, each] for each in chains])


def lowered(plan: Plan, collective: Collective, **how: Any) -> Program:
    """`lower`, and the verifier's word on it: no test runs a program that is not right."""
    program = lower(plan, collective, **how)
    verify(program)
    return program


@st.composite
def shapes(draw: st.DrawFn, size: int, root: int | None = None) -> Shape:
    """A random spanning tree: every rank hangs on one that was put there before."""
    if root is None:
        root = draw(st.integers(0, size - 1))
    others = draw(st.permutations([rank for rank in range(size) if rank != root]))
    parents = [-1] * size
    placed = [root]
    for rank in others:
        parents[rank] = draw(st.sampled_from(placed))
        placed.append(rank)
    return root, tuple(parents)


@st.composite
def packings(draw: st.DrawFn, size: int, root: int | None = None) -> PlannedPacking:
    drawn = draw(st.lists(shapes(size, root), min_size=1, max_size=3))
    weights = draw(st.lists(st.integers(1, 5), min_size=len(drawn), max_size=len(drawn)))
    return packing(drawn, weights)


@st.composite
def plans(draw: st.DrawFn, min_size: int = 1, max_size: int = 6) -> Plan:
    size = draw(st.integers(min_size, max_size))
    down = [draw(packings(size, root)) for root in range(size)]
    up = [draw(packings(size, root)) for root in range(size)]
    return Plan(size, draw(packings(size)), tuple(down), tuple(up), joint(down), joint(up), "drawn")


@st.composite
def programs(draw: st.DrawFn, min_size: int = 1, max_size: int = 6) -> Program:
    """Any program that lowering makes of a random plan."""
    plan = draw(plans(min_size, max_size))
    return lowered(
        plan,
        draw(st.sampled_from([c for c in Collective if c is not Collective.BARRIER])),
        root=draw(st.integers(0, plan.size - 1)),
        addressing=draw(st.sampled_from(Addressing)),
        eager=draw(st.booleans()),
    )


def numbered(names: list[int]) -> tuple[int, ...]:
    """Hosts as programs number them: from 0, in the order of their first ranks."""
    order = list(dict.fromkeys(names))
    return tuple(order.index(name) for name in names)


SPLITS = [
    numbered(names)
    for names in (
        [0, 1],
        [0, 1, 2],
        [0, 0, 1, 1],
        [0, 1, 1, 1],
        [0, 1, 0, 1],
        [0, 0, 1, 2, 1],
        [0, 0, 1, 1, 1, 1],
        [0, 0, 0, 1, 1, 1, 1, 1],
    )
]


@st.composite
def hosted_packings(
    draw: st.DrawFn, collective: Collective, size: int, root: int
) -> PlannedPacking:
    """Trees that cross hosts wherever it happens, often back and forth."""
    if collective in (Collective.ALLGATHER, Collective.REDUCESCATTER):
        return joint([draw(packings(size, each)) for each in range(size)])
    return draw(packings(size, root if collective.is_rooted else None))


@st.composite
def hosted_programs(
    draw: st.DrawFn, collectives: list[Collective], splits: list[tuple[int, ...]] = SPLITS
) -> Program:
    """Any program over several hosts that lowering makes of random trees."""
    hosts = draw(st.sampled_from(splits))
    collective = draw(st.sampled_from(collectives))
    if collective is Collective.ALLREDUCE and draw(st.integers(0, 4)) == 0:
        program = lower_eager_hosts(hosts)
    else:
        root = draw(st.integers(0, len(hosts) - 1))
        program = lower_hosts(
            draw(hosted_packings(collective, len(hosts), root)),
            collective,
            hosts,
            root=root,
            addressing=draw(st.sampled_from(Addressing)),
            channels_per_tree=draw(st.integers(1, 2)),
            slot_depth=draw(st.integers(1, 4)),
        )
    verify(program)
    return program
