"""One-hop trees: every rank hands its data straight to all others.

Behind a switch these are the best trees for allreduce, and they have the least latency anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from blinkrun.errors import UsageError
from blinkrun.planner.certificate import Certificate, check_certificate
from blinkrun.planner.network import Column, Network, network_of
from blinkrun.planner.packing import Flow, Packing
from blinkrun.planner.solve import pack
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank


def pack_onehop(
    topology: Topology, flow: Flow, root: Rank | None = None
) -> tuple[Packing, Certificate]:
    """Return a star round every rank (round `root` if the collective has one) at the best rates.

    Parameters
    ----------
    topology : Topology
        At least two ranks, each pair of them linked. Relays are not used.
    flow : Flow
        What the trees are for.
    root : Rank, optional
        Of broadcast and reduce.

    Returns
    -------
    packing : Packing
        Each hop takes the widest link of its pair. Passes `check_packing`.
    certificate : Certificate
        The bound of the exact planner, over trees of all shapes.

    Raises
    ------
    UsageError
        If two ranks that a star needs have no link.
    PlanError
        If the arguments contradict each other.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> packing, _ = pack_onehop(machine("dgx-2"), Flow.BOTH)
    >>> len(packing.trees), packing.rate
    (16, Fraction(16, 5))
    """
    _, certificate = pack(topology, flow, root)
    bound = check_certificate(topology, certificate)
    return onehop_packing(topology, flow, root, bound=bound), certificate


def onehop_packing(
    topology: Topology, flow: Flow, root: Rank | None = None, *, bound: Fraction = Fraction(0)
) -> Packing:
    """Return the packing alone; where equal rates reach `bound`, it is found without a solver.

    Raises
    ------
    UsageError
        If two ranks that a star needs have no link.
    """
    network = network_of(topology, flow)
    hubs = range(topology.size) if root is None else (root,)
    stars = [_star(topology, network, hub) for hub in hubs]
    rates = _rates(network, root, stars, bound)
    kept = [(star, hub, rate) for star, hub, rate in zip(stars, hubs, rates, strict=True) if rate]
    return Packing(
        flow=flow,
        root=root,
        trees=tuple(network.tree(star, hub) for star, hub, _ in kept),
        rates=tuple(rate for _, _, rate in kept),
    )


def _star(topology: Topology, network: Network, hub: Rank) -> Column:
    """Return the widest link from `hub` to every other rank."""
    arc_to: dict[Rank, int] = {}
    for other, index in network.reach[hub]:
        arc_to.setdefault(other, index)
    for other in range(network.size):
        if other not in (hub, *arc_to):
            one, two = topology.devices[hub], topology.devices[other]
            raise UsageError(
                f"one-hop trees need a link between every two GPUs, {one} and {two} have none; "
                "use the exact method"
            )
    return tuple(sorted(arc_to[other] for other in range(network.size) if other != hub))


def _rates(
    network: Network, root: Rank | None, stars: Sequence[Column], bound: Fraction
) -> list[Fraction]:
    """Return the rate of each star: equal ones if these reach `bound`, else the best."""
    load: Counter[int] = Counter()
    for star in stars:
        load.update(network.use(star))
    equal = min(Fraction(network.capacities[at], times) for at, times in load.items())
    if equal * len(stars) == bound or len(stars) == 1:
        return [equal] * len(stars)
    # imported here only: switches need no solver
    from blinkrun.planner.lp import Master  # noqa: PLC0415

    master = Master(network, root, dict.fromkeys(stars))
    master.solve()
    exact = master.exact()
    if exact is None:
        return [equal] * len(stars)
    rate_of = dict(exact.rates)
    # two ranks have one star between them, which is theirs who comes first
    return [rate_of.pop(star, Fraction(0)) for star in stars]
