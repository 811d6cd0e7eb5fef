"""Few trees: from an optimum of many trees to a packing that is simple to carry out.

Every tree costs a channel with its flags, and every hop a chunk of delay. Two ways are tried, and
the one with fewer trees wins, then the one whose deepest tree is shallower:

- *Equal shares.* The data is cut into the least number of equal shares such that trees carrying
  whole shares reach the wanted rate. Numbers that cannot do are ruled out by the optimum's prices;
  of the ways to do it, a mixed-integer program takes the one with the least total depth. Where no
  two arcs share a resource, matroid partition supplies trees that fit.
- *Dropping.* Trees are left out of the optimum one by one, the slowest first, as long as the rest
  reach the wanted rate.

Both choose from the shallowest trees of all ranks alone, where these reach the wanted rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from blinkrun.planner.certificate import total_price
from blinkrun.planner.forests import pack_forests
from blinkrun.planner.lp import Master, Optimum
from blinkrun.planner.network import Column, Network
from blinkrun.planner.packing import Flow
from blinkrun.planner.seeds import Packed, Rooted, rooted
from blinkrun.types import Rank

_TOLERANCE = 1 - 1e-9
_MAX_SHARES = 24
_MAX_NODES = 500  # of the branch and bound: a count, not a time, so that plans are repeatable


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What to choose from, and the rate to reach."""

    network: Network
    root: Rank | None
    pool: tuple[Column, ...]
    optimum: Optimum
    target: Fraction


def few_trees(
    network: Network,
    root: Rank | None,
    optimum: Optimum,
    *,
    shallow: Sequence[Rooted],
    target: Fraction,
) -> Packed:
    """Return a packing of few trees with at least the rate `target`.

    Parameters
    ----------
    network : Network
    root : Rank or None
        Of all trees, or None if each may have its own.
    optimum : Optimum
        Its columns are those to choose from.
    shallow : sequence of Rooted
        Preferred if they are enough.
    target : Fraction
        At most the optimum's bound.
    """
    pool = tuple(dict.fromkeys(tree.column for tree in shallow))
    master = Master(network, root, pool)
    if master.solve() < target * _TOLERANCE:
        pool = optimum.columns
        master = Master(network, root, pool)
        master.solve()
    wanted = _Wanted(network, root, pool, optimum, target)
    found = [_packed(wanted, _drop(wanted, master.rates)), _packed(wanted, optimum.rates)]
    if not network.flow.is_joint:
        found.append(_packed(wanted, _equal_shares(wanted)))
    return min(
        (packed for packed in found if packed.trees and packed.rate >= target),
        key=lambda packed: (len(packed.trees), packed.trees[-1].depth),
    )


def _root_of(wanted: _Wanted, column: Column) -> Rank | None:
    """Return where a tree hangs; None if it may hang anywhere."""
    if wanted.network.flow.is_joint:
        return wanted.network.root_of(column)
    return wanted.root


def _packed(wanted: _Wanted, rate_of: Mapping[Column, Fraction]) -> Packed:
    trees = sorted(
        rooted(wanted.network, _root_of(wanted, column), column)
        for column, rate in rate_of.items()
        if rate > 0
    )
    return Packed(
        trees=tuple(trees),
        rates=tuple(rate_of[tree.column] for tree in trees),
        prices=wanted.optimum.prices,
        bound=wanted.optimum.bound,
    )


def _drop(wanted: _Wanted, rates: Mapping[Column, float]) -> dict[Column, Fraction]:
    """Return columns of which none can be spared, and their best rates; found greedily."""
    least = float(wanted.target) * _TOLERANCE
    now = _carrying(rates, least)
    needed: set[Column] = set()
    while len(needed) < len(now):
        slowest = min(now.keys() - needed, key=lambda column: (now[column], column))
        needed.add(slowest)
        without = Master(wanted.network, wanted.root, [c for c in now if c != slowest])
        if without.solve() >= least:
            now = _carrying(without.rates, least)
            needed &= now.keys()
    last = Master(wanted.network, wanted.root, now)
    last.solve()
    exact = last.exact()
    return exact[0] if exact else {}


def _carrying(rates: Mapping[Column, float], least: float) -> dict[Column, float]:
    """Return the columns that carry anything."""
    return {column: rate for column, rate in rates.items() if rate > 1e-9 * least}


def use_matrix(network: Network, columns: Sequence[Column]) -> NDArray[np.float64]:
    """Return how often each column takes each resource, shape (resources, columns)."""
    matrix = np.zeros((len(network.capacities), len(columns)))
    for at, column in enumerate(columns):
        for resource, times in network.use(column).items():
            matrix[resource, at] = times
    return matrix


def _equal_shares(wanted: _Wanted) -> dict[Column, Fraction]:
    """Return trees that carry the least number of whole shares, and their rates, if any do."""
    network = wanted.network
    for shares in range(1, _MAX_SHARES + 1):
        room = [int(capacity * shares / wanted.target) for capacity in network.capacities]
        if total_price(wanted.optimum.prices, room) < shares:
            continue
        pool = wanted.pool
        if network.flow is Flow.BOTH and network.is_separate:
            pool = tuple(dict.fromkeys((*pool, *pack_forests(network, room, shares))))
        counts = _whole_packing(wanted, pool, room=room, shares=shares)
        if counts:
            rate = _share_rate(network, counts)
            return {column: rate * count for column, count in counts.items()}
    return {}


def _whole_packing(
    wanted: _Wanted, pool: Sequence[Column], *, room: Sequence[int], shares: int
) -> dict[Column, int]:
    """Return how many shares each tree carries within `room`, or nothing if they do not fit."""
    found = milp(
        [rooted(wanted.network, wanted.root, column).depth for column in pool],
        constraints=[
            LinearConstraint(use_matrix(wanted.network, pool), -np.inf, np.array(room, float)),
            LinearConstraint(np.ones((1, len(pool))), shares, shares),
        ],
        integrality=np.ones(len(pool), dtype=np.int64),
        bounds=Bounds(0, shares),
        options={"node_limit": _MAX_NODES},
    )
    if found.x is None:
        return {}
    counts = {column: round(x) for column, x in zip(pool, found.x, strict=True)}
    return {column: count for column, count in counts.items() if count > 0}


def _share_rate(network: Network, counts: dict[Column, int]) -> Fraction:
    """Return the rate of one share when all run as fast as the fullest resource lets them."""
    load: Counter[int] = Counter()
    for column, count in counts.items():
        for at, times in network.use(column).items():
            load[at] += times * count
    return min(Fraction(network.capacities[at], taken) for at, taken in load.items())
