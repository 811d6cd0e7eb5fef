"""Packing by multiplicative weights, as Blink does it: the comparison with the exact planner.

Every resource has a price. Over and over the cheapest tree is taken, as fast as its narrowest
resource allows, and the prices of what it takes are raised by a factor; so trees spread over the
links by themselves. Scaled down until they fit, they come as close to the best rate as is wanted,
and the prices on the way prove how close. It takes no solver, only many trees: the paper counts 181
for a broadcast on eight V100, and thins them out afterwards.

References
----------
.. [1] N. Garg, J. Könemann, "Faster and simpler algorithms for multicommodity flow and other
   fractional packing problems", SIAM J. Computing 37(2), 2007.
.. [2] G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020,
   section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import inf

from blinkrun.errors import PlanError, UsageError
from blinkrun.planner.certificate import Certificate, total_price
from blinkrun.planner.network import Column, Network, network_of, shallow_tree
from blinkrun.planner.packing import Flow, Packing
from blinkrun.planner.seeds import Packed, rooted
from blinkrun.planner.solve import as_packing
from blinkrun.planner.spanning import cheapest_tree
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank

DEFAULT_EPSILON = Fraction(1, 10)
_UNIT = 10**9  # whole-number weight of the highest price


def pack_mwu(
    topology: Topology,
    flow: Flow,
    root: Rank | None = None,
    *,
    epsilon: Fraction = DEFAULT_EPSILON,
) -> tuple[Packing, Certificate]:
    """Return trees that carry at least ``1 - epsilon`` of the best rate, as many as it takes.

    Parameters
    ----------
    topology : Topology
        At least two ranks, without relays.
    flow : Flow
        Allreduce, broadcast or reduce.
    root : Rank, optional
        Of broadcast and reduce.
    epsilon : Fraction, default 1/10
        Smaller is closer and takes more steps, about in proportion to ``1 / epsilon ** 2``.

    Returns
    -------
    packing : Packing
        Passes `check_packing`.
    certificate : Certificate
        The best bound that was met on the way; `packing` is within `epsilon` of it.

    Raises
    ------
    UnreachableRankError
        If no tree spans all ranks.
    UsageError
        If the method does not apply: other collectives, relays.
    PlanError
        If the arguments contradict each other.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> packing, _ = pack_mwu(machine("dgx-1v"), Flow.DOWN, root=0)
    >>> 5.4 <= packing.rate <= 6
    True
    """
    network = mwu_network(topology, flow, root)
    return as_packing(topology, network, root, solve_mwu(network, root, epsilon))


def mwu_network(topology: Topology, flow: Flow, root: Rank | None) -> Network:
    """Return the network that `solve_mwu` takes.

    Raises
    ------
    UsageError
        If the method does not apply.
    PlanError
        If the arguments contradict each other.
    """
    if flow.is_joint or topology.num_relays:
        what = f"{flow}" if flow.is_joint else "data that runs through relays"
        raise UsageError(f"multiplicative weights do not plan {what}; use the exact method")
    if topology.size < 2:
        raise PlanError("a single rank needs no trees")
    if (root is None) is flow.is_rooted or root not in (None, *range(topology.size)):
        raise PlanError(f"{flow} from root {root} of {topology.size} ranks")
    return network_of(topology, flow)


def solve_mwu(network: Network, root: Rank | None, epsilon: Fraction) -> Packed:
    """Return what `pack_mwu` returns, in the network's indices.

    Raises
    ------
    UnreachableRankError
        If no tree spans all ranks.
    PlanError
        If `epsilon` is not in (0, 1).
    """
    if not 0 < epsilon < 1:
        raise PlanError(f"epsilon {epsilon} is not between 0 and 1")
    shallow_tree(network, root or 0, root or 0)  # raises where a rank is out of reach
    state = _State(network, root)
    # half of epsilon for a step: the theory then promises that the loop ends
    while not state.is_within(epsilon):
        state.step(float(epsilon) / 2)
    return state.packed()


@dataclass(slots=True)
class _Proof:
    """Whole-number weights of the resources, and the cheapest tree's cost at these; 0: none."""

    weights: list[int]
    cost: int
    bound: float


class _State:
    """Prices, trees taken so far, and the load that they put on each resource."""

    def __init__(self, network: Network, root: Rank | None) -> None:
        self._network = network
        self._root = root
        self._prices = [1.0 / capacity for capacity in network.capacities]
        self._loads = [0.0] * len(network.capacities)
        self._taken: dict[Column, Fraction] = {}
        self._total = 0.0
        self._proof = _Proof([], 0, inf)

    def is_within(self, epsilon: Fraction) -> bool:
        """Whether the trees, scaled to fit, reach ``1 - epsilon`` of the best bound known."""
        if not self._proof.cost:
            return False
        over = max(
            load / capacity
            for load, capacity in zip(self._loads, self._network.capacities, strict=True)
        )
        return self._total / over >= float(1 - epsilon) * self._proof.bound

    def step(self, factor: float) -> None:
        """Take the cheapest tree once, and raise the prices of what it takes."""
        capacities = self._network.capacities
        highest = max(self._prices)
        weights = [int(price / highest * _UNIT) for price in self._prices]
        arc_weights = self._network.weights(weights)
        column = cheapest_tree(self._network, self._root, arc_weights)
        self._prove(weights, sum(arc_weights[arc] for arc in column))
        use = self._network.use(column)
        rate = min(Fraction(capacities[at], times) for at, times in use.items())
        self._taken[column] = self._taken.get(column, Fraction(0)) + rate
        self._total += float(rate)
        for at, times in use.items():
            part = float(rate) * times
            self._loads[at] += part
            self._prices[at] *= 1 + factor * part / capacities[at]

    def packed(self) -> Packed:
        """Return the trees, scaled exactly to what fits, and the best proof."""
        network, proof = self._network, self._proof
        loads = [Fraction(0)] * len(network.capacities)
        for column, rate in self._taken.items():
            for at, times in network.use(column).items():
                loads[at] += rate * times
        over = max(
            load / capacity for load, capacity in zip(loads, network.capacities, strict=True)
        )
        trees = sorted(rooted(network, self._root, column) for column in self._taken)
        prices = tuple(Fraction(weight, proof.cost) for weight in proof.weights)
        return Packed(
            trees=tuple(trees),
            rates=tuple(self._taken[tree.column] / over for tree in trees),
            prices=prices,
            bound=total_price(prices, network.capacities),
        )

    def _prove(self, weights: list[int], cost: int) -> None:
        """Keep these weights if they prove a lower bound than those before."""
        total = sum(w * c for w, c in zip(weights, self._network.capacities, strict=True))
        if cost and total / cost < self._proof.bound:
            self._proof = _Proof(weights, cost, total / cost)
