"""The best packing beside what a ring library gets on the same links."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from blinkrun.planner.certificate import Certificate, check_certificate
from blinkrun.planner.network import network_of
from blinkrun.planner.packing import Flow, Packing
from blinkrun.planner.rings import RingPeer, ring_peer
from blinkrun.planner.solve import pack
from blinkrun.planner.symmetry import find_renaming, shape_of
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank

_EXACT = Fraction(0)
_ANY = Fraction(1, 2)  # loss where only the bound is wanted


@dataclass(frozen=True, slots=True)
class Comparison:
    """What both get, in the topology's unit.

    Attributes
    ----------
    packing : Packing
        The best one, at no loss.
    certificate : Certificate
        That it is the best.
    ring : RingPeer
    """

    packing: Packing
    certificate: Certificate
    ring: RingPeer

    @property
    def rate(self) -> Fraction:
        """Of the packing."""
        return self.packing.rate

    @property
    def ring_rate(self) -> Fraction:
        """Of the ring library; 0 where there is no ring."""
        return self.ring.rate

    @property
    def ratio(self) -> Fraction | None:
        """How many times as fast as the ring library the packing is; None without a ring."""
        return self.rate / self.ring.rate if self.ring.rate else None


def compare(
    topology: Topology, flow: Flow = Flow.BOTH, root: Rank | None = None, *, lane: int | None = None
) -> Comparison:
    """Return the best packing and the ring library's rate on the same links.

    Parameters
    ----------
    topology : Topology
        All links of an allocation.
    flow : Flow, default allreduce
    root : Rank, optional
        Of broadcast and reduce. Default: the root that gives the best rate, the lowest of equals.
    lane : int, optional
        As for `ring_peer`.

    Raises
    ------
    UnreachableRankError
        If the links do not join all ranks.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> six = compare(induce(machine("dgx-1v"), [1, 2, 3, 5, 6, 7]))
    >>> float(six.rate), float(six.ring_rate), six.ratio
    (2.8, 2.4, Fraction(7, 6))
    """
    start = best_root(topology, flow) if flow.is_rooted and root is None else root
    packing, certificate = pack(topology, flow, start, loss=_EXACT)
    return Comparison(packing, certificate, ring_peer(topology, flow, start, lane=lane))


def best_root(topology: Topology, flow: Flow) -> Rank:
    """Return the root with the best rate of broadcast or reduce, the lowest of equals.

    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> best_root(induce(machine("dgx-1v"), [1, 0, 4, 5, 7]), Flow.DOWN)
    0
    """
    shape = shape_of(network_of(topology, flow))
    bounds: dict[Rank, Fraction] = {}
    for root in range(topology.size):
        if not any(find_renaming(shape, shape, other, root) for other in bounds):
            _, certificate = pack(topology, flow, root, loss=_ANY)
            bounds[root] = check_certificate(topology, certificate)
    return max(bounds, key=lambda root: (bounds[root], -root))
