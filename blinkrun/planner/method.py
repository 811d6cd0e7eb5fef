"""The ways to plan a collective, by name: the exact one and those to compare it with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from blinkrun.errors import UnreachableRankError, UsageError
from blinkrun.planner.certificate import Certificate
from blinkrun.planner.hybrid import HybridSplit, hybrid_split
from blinkrun.planner.mwu import DEFAULT_EPSILON, mwu_network, pack_mwu, solve_mwu
from blinkrun.planner.network import Network, network_of, shallow_tree
from blinkrun.planner.onehop import pack_onehop
from blinkrun.planner.packing import Edge, Flow, Packing, Tree
from blinkrun.planner.seeds import Packed
from blinkrun.planner.solve import DEFAULT_LOSS, as_packing, pack
from blinkrun.topology.graph import LinkKind, Topology, select_links
from blinkrun.types import Rank

_ZERO = Fraction(0)
Proven = tuple[Packing, Certificate]


class Method(StrEnum):
    """How trees are found."""

    EXACT = "exact"  # the linear program over all trees and links, then few trees
    MWU = "mwu"  # multiplicative weights, all trees that they give
    ONEHOP = "onehop"  # a star round every rank
    PAPER = "paper"  # as Blink does: multiplicative weights, then few trees; NVLink or PCIe


@dataclass(frozen=True, slots=True)
class PaperPackings:
    """What the paper's method gives: a packing over NVLink and one over PCIe, not one over both.

    Attributes
    ----------
    nvlink, pcie : Packing or None
        None where these links alone do not join all ranks; never both None.
    unit : str
        Of the rates.
    """

    nvlink: Packing | None
    pcie: Packing | None
    unit: str

    @property
    def nvlink_rate(self) -> Fraction:
        """What the NVLink trees carry, 0 if there are none."""
        return _ZERO if self.nvlink is None else self.nvlink.rate

    @property
    def pcie_rate(self) -> Fraction:
        """What the PCIe trees carry, 0 if there are none."""
        return _ZERO if self.pcie is None else self.pcie.rate

    def split(self, size_bytes: int) -> HybridSplit:
        """Return what each carries of so many bytes, and how long that takes.

        Raises
        ------
        UsageError
            If rates are not in MB/s, and so of no use with bytes.
        """
        if self.unit != "MB/s":
            raise UsageError(f"rates in {self.unit}s do not split bytes; plan with all links")
        return hybrid_split(size_bytes, nvlink_rate=self.nvlink_rate, pcie_rate=self.pcie_rate)


def pack_by(  # noqa: PLR0913 - those of `pack`, and which method
    method: Method,
    topology: Topology,
    flow: Flow,
    root: Rank | None = None,
    *,
    loss: Fraction = DEFAULT_LOSS,
    floor: Fraction = _ZERO,
) -> Proven:
    """Return the packing that `method` finds, and a bound on all packings.

    Parameters
    ----------
    method : Method
    topology, flow, root
        As for `pack`.
    loss : Fraction, default 1/20
        Of the exact method and the paper's: part of the best rate that may be given up for fewer
        trees. (Multiplicative weights come within `DEFAULT_EPSILON`, one-hop trees are what they
        are.)
    floor : Fraction, default 0
        Of the exact method: a rate below which nothing is given up.

    Returns
    -------
    packing : Packing
        Passes `check_packing`. The paper's method gives its NVLink trees, or, where NVLink does
        not join the ranks, those over PCIe.
    certificate : Certificate
        Passes `check_certificate`.

    Raises
    ------
    UnreachableRankError
        If no tree spans all ranks.
    UsageError
        If the method does not apply.
    PlanError
        If the arguments contradict each other.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> for method in Method:
    ...     packing, _ = pack_by(method, machine("dgx-2"), Flow.BOTH)
    ...     print(method, len(packing.trees), float(packing.rate))
    exact 16 3.2
    mwu 13 2.888888888888889
    onehop 16 3.2
    paper 16 3.2
    """
    method = Method(method)
    if method is Method.MWU:
        return pack_mwu(topology, flow, root)
    if method is Method.ONEHOP:
        return pack_onehop(topology, flow, root)
    exact = pack(topology, flow, root, loss=loss, floor=floor)
    if method is Method.EXACT:
        return exact
    both = pack_paper(topology, flow, root, loss=loss)
    return both.nvlink or both.pcie or exact[0], exact[1]


def pack_paper(
    topology: Topology, flow: Flow, root: Rank | None = None, *, loss: Fraction = DEFAULT_LOSS
) -> PaperPackings:
    """Return what Blink packs over NVLink and over PCIe.

    Multiplicative weights give many trees, a whole-number program takes few of them; behind
    NVSwitch, allreduce takes one-hop trees.

    Raises
    ------
    UnreachableRankError
        If neither NVLink nor PCIe alone joins all ranks.
    UsageError
        For collectives and machines that multiplicative weights do not plan.
    """
    fabric = [kind for kind in LinkKind if kind.is_fabric]
    host = [kind for kind in LinkKind if not kind.is_fabric]
    parts = [select_links(topology, kinds) for kinds in (fabric, host)]
    joined = [part for part in parts if _is_joined(part, flow, root)]
    # with neither, this says which rank is out of reach
    found = {
        part: _in_whole(topology, part, _few(part, flow, root, loss)) for part in joined or parts
    }
    return PaperPackings(found.get(parts[0]), found.get(parts[1]), topology.unit)


def _is_joined(topology: Topology, flow: Flow, root: Rank | None) -> bool:
    try:
        shallow_tree(network_of(topology, flow), root or 0, root or 0)
    except UnreachableRankError:
        return False
    return True


def _few(topology: Topology, flow: Flow, root: Rank | None, loss: Fraction) -> Packing:
    kinds = {link.kind for link in topology.links}
    if kinds == {LinkKind.NVSWITCH} and flow is Flow.BOTH:
        return pack_onehop(topology, flow)[0]
    network = mwu_network(topology, flow, root)
    many = solve_mwu(network, root, DEFAULT_EPSILON)
    return as_packing(topology, network, root, _thinned(network, root, many, loss))[0]


def _thinned(network: Network, root: Rank | None, many: Packed, loss: Fraction) -> Packed:
    """Return few of the trees, at the rate that the bound asks for or the best that they have."""
    # imported here only: what they stand on, numpy, takes a while to import
    from blinkrun.planner.lp import Master, Optimum  # noqa: PLC0415
    from blinkrun.planner.minimize import few_trees  # noqa: PLC0415

    columns = tuple(tree.column for tree in many.trees)
    master = Master(network, root, columns)
    master.solve()
    exact = master.exact()
    rates = exact.rates if exact else dict(zip(columns, many.rates, strict=True))
    optimum = Optimum(rates, columns, many.prices, many.bound)
    target = min(many.bound * (1 - loss), optimum.rate)
    return few_trees(network, root, optimum, shallow=(), target=target)


def _in_whole(whole: Topology, part: Topology, packing: Packing) -> Packing:
    """Return a packing of some links with the indices that they have among all links."""
    index_of = {link: at for at, link in enumerate(whole.links)}
    at = [index_of[link] for link in part.links]
    trees = tuple(
        Tree(
            tree.root,
            tuple(
                Edge(edge.parent, edge.child, tuple(sorted(at[link] for link in edge.links)))
                for edge in tree.edges
            ),
        )
        for tree in packing.trees
    )
    return replace(packing, trees=trees)
