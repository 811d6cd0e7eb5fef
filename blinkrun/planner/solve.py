"""From a topology to the packing of one collective, the quick ways first.

1. Equal rates of the shallowest trees, proven optimal by whole-number arithmetic: switches, shared
   memory, full meshes.
2. Broadcast and reduce where no two links share anything: unit trees by Edmonds' theorem.
3. Everything else: the linear program by column generation, then few trees of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from blinkrun.errors import PlanError
from blinkrun.planner.branchings import pack_branchings
from blinkrun.planner.certificate import Certificate
from blinkrun.planner.network import Column, Network, network_of
from blinkrun.planner.packing import Flow, Packing
from blinkrun.planner.seeds import (
    Packed,
    Rooted,
    certified,
    shallow_trees,
    single_tree,
    sparing_trees,
)
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank

DEFAULT_LOSS = Fraction(1, 20)
ROUNDING = Fraction(1, 1000)  # of the rate, that whole shares may cost
_LARGE = 8  # ranks; beyond, symmetry is worth looking for
_MAX_HUBS = 8  # ranks near which the first trees are looked for
_MANY_RANKS = 32  # beyond, what is sparing is left to the linear program


def pack(
    topology: Topology,
    flow: Flow,
    root: Rank | None = None,
    *,
    loss: Fraction = DEFAULT_LOSS,
    floor: Fraction = Fraction(0),
) -> tuple[Packing, Certificate]:
    """Return few trees that carry at least ``1 - loss`` of the best possible rate.

    Parameters
    ----------
    topology : Topology
        At least two ranks.
    flow : Flow
        What the trees are for.
    root : Rank, optional
        Of broadcast and reduce; the others have none.
    loss : Fraction, default 1/20
        Part of the best rate that may be given up for fewer trees; 0 for the best rate.
    floor : Fraction, default 0
        A rate below which nothing is given up, such as that of another library.

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
    if (root is None) is flow.is_rooted or root not in (None, *range(topology.size)):
        raise PlanError(f"{flow} from root {root} of {topology.size} ranks")
    network = network_of(topology, flow)
    return as_packing(topology, network, root, _solve(topology, network, root, loss, floor))


def _solve(
    topology: Topology, network: Network, root: Rank | None, loss: Fraction, floor: Fraction
) -> Packed:
    """Return what `pack` returns, in the network's indices.

    Raises
    ------
    UnreachableRankError
        If no tree spans all ranks.
    PlanError
        If `loss` is not in [0, 1).
    """
    if not 0 <= loss < 1:
        raise PlanError(f"loss {loss} is not in [0, 1)")
    shallow = shallow_trees(network, root)
    packed = _quick(network, root, shallow, loss, floor)
    # from a root, or one tree for each, there is nothing to be gained; nor over one hop
    if packed is not None and (
        network.flow is not Flow.BOTH or max(tree.depth for tree in packed.trees) == 1
    ):
        return packed
    # imported here only: numpy takes longer to import than many plans take to make
    from blinkrun.planner.folding import folding_of  # noqa: PLC0415
    from blinkrun.planner.lp import Optimum, solve_packing  # noqa: PLC0415
    from blinkrun.planner.minimize import few_trees  # noqa: PLC0415

    def enough(bound: Fraction) -> Fraction:
        return min(bound, max(bound * (1 - loss) / (1 - ROUNDING), floor))

    if packed is None:
        folding = None
        if network.size > _LARGE and not network.num_relays:
            folding = folding_of(topology, root)
        hubs = range(0, network.size, -(-network.size // _MAX_HUBS))
        sparing = sparing_trees(network, root, hubs)
        start = [tree.column for tree in (*shallow, *sparing)]
        optimum = solve_packing(network, root, start, folding=folding, enough=enough)
    else:
        rates: dict[Column, Fraction] = {}
        for tree, rate in zip(packed.trees, packed.rates, strict=True):
            rates[tree.column] = rates.get(tree.column, Fraction(0)) + rate
        optimum = Optimum(rates, tuple(rates), packed.prices, packed.bound)
    target = min(enough(optimum.bound), optimum.rate)
    return few_trees(network, root, optimum, shallow=shallow, target=target)


def _quick(
    network: Network, root: Rank | None, shallow: Sequence[Rooted], loss: Fraction, floor: Fraction
) -> Packed | None:
    """Return a packing at the wanted rate if there is one that takes no linear program."""
    packed = certified(network, root, shallow)
    found = [] if packed is None else [packed]
    if root is not None:
        if packed is not None:
            found = [single_tree(network, root, packed, shallow)]
        branchings = pack_branchings(network, root, loss, floor)
        found += [] if branchings is None else [branchings]
    if found:
        return min(found, key=lambda packed: (len(packed.trees), packed.trees[-1].depth))
    if network.size > _MANY_RANKS:
        return None
    return certified(network, root, sparing_trees(network, root))


def as_packing(
    topology: Topology, network: Network, root: Rank | None, packed: Packed
) -> tuple[Packing, Certificate]:
    """Return a solution with the topology's own names."""
    packing = Packing(
        flow=network.flow,
        root=root,
        trees=tuple(network.tree(tree.column, tree.root) for tree in packed.trees),
        rates=packed.rates,
    )
    names = [resource.name for resource in topology.resources]
    prices = tuple((name, p) for name, p in zip(names, packed.prices, strict=True) if p)
    return packing, Certificate(network.flow, root, prices)
