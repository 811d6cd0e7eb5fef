"""The best packing, exactly: a linear program over all spanning trees, by column generation.

Maximise the sum of rates such that no resource carries more than its capacity. There are far too
many trees to list, so the master program (HiGHS) knows only some; its dual prices say what each
resource is worth, and the cheapest spanning tree at these prices is the tree to add. When none
costs less than 1 the solution is optimal over all trees, and the prices are the proof.

The columns start as the shallowest tree of every rank, and only trees that improve are added: on
a switch the one-hop stars are already optimal.

References
----------
.. [1] G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020.
.. [2] F. Barahona, "Packing spanning trees", Mathematics of Operations Research 20(1), 1995.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from blinkrun.errors import InternalError
from blinkrun.planner.certificate import total_price, tree_cost
from blinkrun.planner.network import Column, Network
from blinkrun.planner.rational import exact_basis, round_fraction
from blinkrun.planner.seeds import arc_order
from blinkrun.planner.spanning import cheapest_tree
from blinkrun.types import Rank

_UNIT = 10**9  # whole-number weight of price 1
_ENOUGH = _UNIT - 100  # a tree that costs this much does not improve the master by its tolerance
_MAX_ROUNDS = 2000
_DENOMINATORS = (100, 10_000)


@dataclass(frozen=True, slots=True)
class Optimum:
    """The solution over all trees: those that the master met, and resource prices as proof."""

    columns: tuple[Column, ...]
    prices: tuple[Fraction, ...]
    bound: Fraction


def solve_packing(network: Network, root: Rank | None, columns: Iterable[Column]) -> Optimum:
    """Return the optimum over all trees, starting from `columns` (at least one)."""
    pool = list(dict.fromkeys(columns))
    orders = [arc_order(network, root, hub) for hub in range(network.size)]
    for _ in range(_MAX_ROUNDS):
        _, prices = solve_master(network, pool)
        weights = network.weights([max(0, round(price * _UNIT)) for price in prices])
        new = [
            column
            for column in dict.fromkeys(
                cheapest_tree(network, root, weights, order) for order in orders
            )
            if sum(weights[arc] for arc in column) < _ENOUGH and column not in pool
        ]
        if not new:
            return _proven(network, root, pool, prices)
        pool += new
    raise InternalError(f"packing has not converged after {_MAX_ROUNDS} rounds")


def use_matrix(network: Network, columns: Sequence[Column]) -> NDArray[np.float64]:
    """Return how often each column takes each resource, shape (resources, columns)."""
    matrix = np.zeros((len(network.capacities), len(columns)))
    for at, column in enumerate(columns):
        for resource, times in network.use(column).items():
            matrix[resource, at] = times
    return matrix


def solve_master(network: Network, columns: Sequence[Column]) -> tuple[list[float], list[float]]:
    """Return the best rates of these columns, and the resource prices."""
    scale = min(network.capacities)
    found = linprog(
        -np.ones(len(columns)),
        A_ub=use_matrix(network, columns),
        b_ub=np.array(network.capacities) / scale,
        method="highs-ds",
        options={"presolve": False},
    )
    if found.status != 0 or found.x is None:
        raise InternalError(f"the packing program was not solved: {found.message}")
    return [float(rate) * scale for rate in found.x], [-float(y) for y in found.ineqlin.marginals]


def exact_rates(network: Network, columns: Sequence[Column]) -> list[Fraction]:
    """Return the best rates of these columns in fractions that keep within every capacity."""
    rates, _ = solve_master(network, columns)
    uses = [network.use(column) for column in columns]
    resources = range(len(network.capacities))
    rows = [[use[at] for use in uses] for at in resources]
    slack = [
        network.capacities[at]
        - sum(times * rate for times, rate in zip(rows[at], rates, strict=True))
        for at in resources
    ]
    tries: list[list[Fraction] | None] = [
        [round_fraction(rate, limit) for rate in rates] for limit in _DENOMINATORS
    ]
    tries.append(exact_basis(rows, network.capacities, rates, slack))
    tries.append([Fraction(max(0.0, rate)) for rate in rates])
    fitted = [_fit(rows, network.capacities, attempt) for attempt in tries if attempt is not None]
    return max(fitted, key=sum)


def _fit(
    rows: Sequence[Sequence[int]], capacities: Sequence[int], rates: list[Fraction]
) -> list[Fraction]:
    """Return `rates` scaled down as far as the fullest resource asks."""
    over = Fraction(1)
    for row, capacity in zip(rows, capacities, strict=True):
        load = sum(
            (times * rate for times, rate in zip(row, rates, strict=True) if times), Fraction(0)
        )
        over = max(over, load / capacity)
    return [rate / over for rate in rates]


def _proven(
    network: Network, root: Rank | None, pool: Sequence[Column], prices: Sequence[float]
) -> Optimum:
    """Return the optimum with the exact prices that prove the least bound."""
    uses = [network.use(column) for column in pool]
    resources = range(len(network.capacities))
    rows = [[use[at] for at in resources] for use in uses]
    slack = [sum(times * y for times, y in zip(row, prices, strict=True)) - 1 for row in rows]
    tries: list[list[Fraction] | None] = [
        [round_fraction(price, limit) for price in prices] for limit in _DENOMINATORS
    ]
    tries.append(exact_basis(rows, [1] * len(rows), prices, slack))
    tries.append([Fraction(max(0.0, price)) for price in prices])
    best: Optimum | None = None
    for attempt in tries:
        cost = tree_cost(network, root, attempt) if attempt else Fraction(0)
        if attempt and cost > 0:
            scaled = tuple(price / cost for price in attempt)
            bound = total_price(scaled, network.capacities)
            if best is None or bound < best.bound:
                best = Optimum(tuple(pool), scaled, bound)
    if best is None:
        raise InternalError("no resource prices prove a bound on the packing")
    return best
