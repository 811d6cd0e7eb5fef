"""Few trees: from an optimum of many trees to a packing that is simple to carry out.

Every tree costs a channel with its flags, and every hop a chunk of delay. The rule, in order:

1. *Shallow first.* Where the seeds (shallowest trees) reach the wanted rate, only they are used.
2. *Few equal shares.* The data is cut into the least number of equal shares, such that trees
   carrying whole shares reach the wanted rate; of all ways, the one with the least total depth.
   (A mixed-integer program; shares that cannot fit are ruled out by the optimum's prices.)
3. Where no small number of shares will do, trees are *dropped* from the optimum one by one, the
   slowest first, as long as the rest reach the wanted rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from blinkrun.planner.certificate import total_price
from blinkrun.planner.lp import Optimum, exact_rates, solve_master, use_matrix
from blinkrun.planner.network import Column, Network
from blinkrun.planner.seeds import Packed, Rooted, rooted
from blinkrun.types import Rank

_TOLERANCE = 1 - 1e-9
_MAX_SHARES = 24
_MAX_NODES = 500  # of the branch and bound: a count, not a time, so that plans are repeatable


def few_trees(
    network: Network,
    root: Rank | None,
    optimum: Optimum,
    *,
    seeds: Sequence[Rooted],
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
    seeds : sequence of Rooted
        Preferred if they are enough.
    target : Fraction
        At most the optimum's bound.
    """
    pool = list(dict.fromkeys(seed.column for seed in seeds))
    rates, _ = solve_master(network, pool)
    if sum(rates) < target * _TOLERANCE:
        pool = list(optimum.columns)
        rates, _ = solve_master(network, pool)
    kept = _drop(network, pool, rates, target)
    chosen = _equal_shares(network, root, pool, optimum, target=target, most=len(kept))
    if chosen is None:
        chosen = dict(zip(kept, exact_rates(network, kept), strict=True))
    trees = sorted(rooted(network, root, column) for column, rate in chosen.items() if rate > 0)
    return Packed(
        trees=tuple(trees),
        rates=tuple(chosen[tree.column] for tree in trees),
        prices=optimum.prices,
        bound=optimum.bound,
    )


def _drop(
    network: Network, pool: Sequence[Column], rates: Sequence[float], target: Fraction
) -> list[Column]:
    """Return columns of which none can be spared, found greedily."""
    least = float(target) * _TOLERANCE
    now = {column: rate for column, rate in zip(pool, rates, strict=True) if rate > 1e-9 * least}
    needed: set[Column] = set()
    while len(needed) < len(now):
        slowest = min(now.keys() - needed, key=lambda column: (now[column], column))
        needed.add(slowest)
        rest = [column for column in now if column != slowest]
        if not rest:
            break
        without, _ = solve_master(network, rest)
        if sum(without) >= least:
            now = {c: rate for c, rate in zip(rest, without, strict=True) if rate > 1e-9 * least}
            needed &= now.keys()
    return list(now)


def _equal_shares(
    network: Network,
    root: Rank | None,
    pool: Sequence[Column],
    optimum: Optimum,
    *,
    target: Fraction,
    most: int,
) -> dict[Column, Fraction] | None:
    """Return trees that carry the least number of whole shares, and their rates."""
    for shares in range(1, _MAX_SHARES + 1):
        room = [int(capacity * shares / target) for capacity in network.capacities]
        if total_price(optimum.prices, room) < shares:
            continue
        counts = _whole_packing(network, root, pool, room=room, shares=shares)
        if counts and len(counts) <= most:
            rate = _share_rate(network, counts)
            return {column: rate * count for column, count in counts.items()}
    return None


def _whole_packing(
    network: Network,
    root: Rank | None,
    pool: Sequence[Column],
    *,
    room: Sequence[int],
    shares: int,
) -> dict[Column, int]:
    """Return how many shares each tree carries within `room`, or nothing if they do not fit."""
    found = milp(
        [rooted(network, root, column).depth for column in pool],
        constraints=[
            LinearConstraint(use_matrix(network, pool), -np.inf, np.array(room, dtype=float)),
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
    load = [0] * len(network.capacities)
    for column, count in counts.items():
        for at, times in network.use(column).items():
            load[at] += times * count
    return min(Fraction(c, at) for c, at in zip(network.capacities, load, strict=True) if at)
