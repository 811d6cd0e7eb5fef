r"""Proof that no packing can be faster: prices for resources.

If every tree costs at least 1 at prices :math:`p`, any packing with rates :math:`w` satisfies

.. math:: \sum_t w_t \le \sum_t w_t \sum_{r \in t} p_r = \sum_r p_r \sum_{t \ni r} w_t
          \le \sum_r p_r c_r,

so the price of all capacity together bounds the rate (weak duality of linear programs). Where all
ranks are roots with equal rates, it is enough that the cheapest trees of the roots cost at least 1
on average: each root has the same part of the rate. Whether that holds is decided exactly, by the
cheapest trees in whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from blinkrun.errors import PlanError
from blinkrun.planner.network import Network, network_of
from blinkrun.planner.packing import Flow
from blinkrun.planner.spanning import cheapest_tree
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank


@dataclass(frozen=True, slots=True)
class Certificate:
    """Prices under which every tree of `flow` (from `root`, if given) costs at least 1.

    Of allgather and reducescatter: the cheapest trees of all roots, on average.

    Attributes
    ----------
    flow : Flow
    root : Rank or None
        Of broadcast and reduce; None elsewhere.
    prices : tuple of (str, Fraction)
        Resource and price per unit of capacity, sorted; resources left out are free.
    """

    flow: Flow
    root: Rank | None
    prices: tuple[tuple[str, Fraction], ...]


def check_certificate(topology: Topology, certificate: Certificate) -> Fraction:
    """Return the bound that the certificate proves, in the topology's unit; exact.

    Raises
    ------
    PlanError
        If a price is negative or for an unknown resource, or a tree costs less than 1.
    """
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    prices = dict(certificate.prices)
    for name, price in prices.items():
        if name not in capacity:
            raise PlanError(f"certificate prices '{name}', which {topology.name} has not")
        if price < 0:
            raise PlanError(f"certificate prices '{name}' at {price}, less than 0")
    network = network_of(topology, certificate.flow)
    free = Fraction(0)
    cost = tree_cost(network, certificate.root, [prices.get(name, free) for name in capacity])
    if cost < 1:
        raise PlanError(f"certificate does not hold: a tree costs {cost}, less than 1")
    return total_price([prices[name] for name in prices], [capacity[name] for name in prices])


def total_price(prices: Sequence[Fraction], capacities: Sequence[int]) -> Fraction:
    """Return the price of all capacity.

    >>> total_price([Fraction(1, 2), Fraction(0)], [3, 5])
    Fraction(3, 2)
    """
    return sum((p * c for p, c in zip(prices, capacities, strict=True)), Fraction(0))


def tree_cost(network: Network, root: Rank | None, prices: Sequence[Fraction]) -> Fraction:
    """Return what the cheapest tree costs at `prices`, one per resource.

    Where all ranks are roots, that is the average over the roots.
    """
    scale = lcm(*(price.denominator for price in prices))
    weights = network.weights([int(price * scale) for price in prices])
    roots = network.roots if root is None else (root,)
    total = sum(weights[arc] for at in roots for arc in cheapest_tree(network, at, weights))
    return Fraction(total, scale * len(roots))
