"""From a topology to the packing of one collective: the three ways to it, quickest first."""

from __future__ import annotations

from fractions import Fraction

from blinkrun.errors import PlanError
from blinkrun.planner.branchings import pack_branchings
from blinkrun.planner.certificate import Certificate
from blinkrun.planner.network import Network, network_of
from blinkrun.planner.packing import Flow, Packing
from blinkrun.planner.seeds import Packed, certified_seeds, seed_trees
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank

DEFAULT_LOSS = Fraction(1, 20)


def pack(
    topology: Topology, flow: Flow, root: Rank | None = None, *, loss: Fraction = DEFAULT_LOSS
) -> tuple[Packing, Certificate]:
    """Return few trees that carry at least ``1 - loss`` of the best possible rate.

    Parameters
    ----------
    topology : Topology
        At least two ranks.
    flow : Flow
        What the trees are for.
    root : Rank, optional
        Of broadcast and reduce; allreduce has none.
    loss : Fraction, default 1/20
        Part of the best rate that may be given up for fewer trees.

    Returns
    -------
    packing : Packing
        Passes `check_packing`.
    certificate : Certificate
        Proves, with `check_certificate`, the bound that `loss` refers to.

    Raises
    ------
    UnreachableRankError
        If no tree spans all ranks.
    PlanError
        If the arguments contradict each other.

    Examples
    --------
    >>> from blinkrun.planner.certificate import check_certificate
    >>> from blinkrun.topology.catalog import machine
    >>> packing, certificate = pack(machine("dgx-1p"), Flow.DOWN, root=0)
    >>> packing.rate, check_certificate(machine("dgx-1p"), certificate)
    (Fraction(4, 1), Fraction(4, 1))
    """
    if topology.size < 2:
        raise PlanError("a single rank needs no trees")
    if (root is None) is not (flow is Flow.BOTH) or root not in (None, *range(topology.size)):
        raise PlanError(f"{flow} from root {root} of {topology.size} ranks")
    if not 0 <= loss < 1:
        raise PlanError(f"loss {loss} is not in [0, 1)")
    network = network_of(topology, flow)
    packed = _solve(network, root, loss)
    packing = Packing(
        flow=flow,
        root=root,
        trees=tuple(network.tree(tree.column, tree.root) for tree in packed.trees),
        rates=packed.rates,
    )
    names = (resource.name for resource in topology.resources)
    prices = tuple((name, price) for name, price in zip(names, packed.prices, strict=True) if price)
    return packing, Certificate(flow, root, prices)


def _solve(network: Network, root: Rank | None, loss: Fraction) -> Packed:
    seeds = seed_trees(network, root)
    packed = certified_seeds(network, root, seeds)
    if packed is None and root is not None:
        packed = pack_branchings(network, root, loss)
    if packed is not None:
        return packed
    # here only: scipy takes longer to import than most plans take to make
    from blinkrun.planner.lp import solve_packing
    from blinkrun.planner.minimize import few_trees

    optimum = solve_packing(network, root, [seed.column for seed in seeds])
    target = optimum.bound * (1 - loss)
    return few_trees(network, root, optimum, seeds=seeds, target=target)
