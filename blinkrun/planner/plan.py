"""The plan: for every collective, the trees and the share of the data that each carries.

A plan is a value: the same topology gives the same bytes on every machine. `to_json` and
`from_json` are exact inverses, so a plan can be kept, compared and sent to other ranks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from blinkrun.errors import PlanError
from blinkrun.types import Rank

PLAN_VERSION = 2  # raised when the same topology would be planned differently


@lru_cache(maxsize=1024)  # reduce has the trees of broadcast
def _lost(root: Rank, parents: tuple[int, ...]) -> Rank | None:
    """Return a rank whose parents do not lead to the root, if there is one."""
    size = len(parents)
    hanging = {root}
    for start in range(size):
        path: list[Rank] = []
        rank = start
        while rank not in hanging:
            if not 0 <= rank < size or len(path) == size:
                return start
            path.append(rank)
            rank = parents[rank]
        hanging.update(path)
    return None


@dataclass(frozen=True, slots=True)
class PlannedTree:
    """A spanning tree and the shares ``[start, stop)`` of the data that it carries.

    Attributes
    ----------
    root : Rank
        Where data starts (broadcast), ends (reduce) or turns round (allreduce).
    parents : tuple of int
        Parent of every rank; -1 for the root.
    start, stop : int
        Range of `PlannedPacking.shares`; never empty.
    up, down : tuple of str
        Kind of the link from every rank to its parent, and of that from its parent, as in
        `LinkKind`; empty for the root and for a direction in which nothing flows. Left out, no
        kinds are known.

    Examples
    --------
    >>> tree = PlannedTree(root=0, parents=(-1, 0, 1), start=0, stop=1)
    >>> tree.depth, tree.children(0), tree.children(2)
    (2, (1,), ())
    """

    root: Rank
    parents: tuple[int, ...]
    start: int
    stop: int
    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Kept plans have hundreds of trees and are read at every start: this is the quick way.
        root, parents = self.root, self.parents
        size = len(parents)
        if not 0 <= root < size or parents[root] != -1:
            raise PlanError(f"tree rooted at {root} has parents {parents}")
        if not 0 <= self.start < self.stop:
            raise PlanError(f"tree at {root}: shares [{self.start}, {self.stop}) are empty")
        if not self.up:
            object.__setattr__(self, "up", ("",) * size)
        if not self.down:
            object.__setattr__(self, "down", ("",) * size)
        up, down = self.up, self.down
        if not len(up) == len(down) == size or up[root] or down[root]:
            raise PlanError(f"tree at {root}: links {up}, {down}; {size} ranks")
        lost = _lost(root, parents)
        if lost is not None:
            raise PlanError(f"tree at {root}: rank {lost} does not hang on it: {parents}")

    @property
    def depth(self) -> int:
        """Hops from the root to the farthest rank; 0 for a single rank."""
        return max(self._hops(rank) for rank in range(len(self.parents)))

    def children(self, rank: Rank) -> tuple[Rank, ...]:
        """Return the ranks whose parent is `rank`, in ascending order."""
        return tuple(child for child, parent in enumerate(self.parents) if parent == rank)

    def _hops(self, rank: Rank) -> int:
        hops = 0
        while rank != self.root:
            rank = self.parents[rank]
            hops += 1
        return hops


@dataclass(frozen=True, slots=True)
class PlannedPacking:
    """Trees that together carry all `shares` of the data.

    Attributes
    ----------
    shares : int
        Into how many equal shares the data is cut; at most a few thousand. With trees of all
        roots, into how many each root's block is cut.
    trees : tuple of PlannedTree
        In the order of their shares, without gap or overlap; of all roots: by root, and for each
        root in that order.
    rate : Fraction
        Data per second that the links carry, in `unit`; 0 for a single rank, where nothing moves.
        With trees of all roots, that of all blocks together.
    bound : Fraction
        What no packing can exceed, proven by resource prices (see `certificate`).
    unit : str
        Unit of both, such as ``lane`` or ``MB/s``.
    joint : bool, default False
        Whether every rank has trees of its own that carry its own block (allgather,
        reducescatter).
    """

    shares: int
    trees: tuple[PlannedTree, ...]
    rate: Fraction
    bound: Fraction
    unit: str
    joint: bool = False

    def __post_init__(self) -> None:
        if not self.joint:
            self._check_shares(self.trees, "trees")
        elif [tree.root for tree in self.trees] != sorted(tree.root for tree in self.trees):
            raise PlanError("trees of all roots are not in the order of their roots")
        else:
            for root in range(self.size if self.trees else 1):
                own = [tree for tree in self.trees if tree.root == root]
                self._check_shares(own, f"trees at {root}")
        if not 0 <= self.rate <= self.bound:
            raise PlanError(f"rate {self.rate} is not between 0 and the bound {self.bound}")

    def _check_shares(self, trees: Sequence[PlannedTree], which: str) -> None:
        at = 0
        size = self.size if trees else 0
        for tree in trees:
            if tree.start != at or len(tree.parents) != size:
                raise PlanError(f"tree at {tree.root} starts at share {tree.start}, not at {at}")
            at = tree.stop
        if at != self.shares or not trees:
            raise PlanError(f"{which} carry {at} of {self.shares} shares")

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.trees[0].parents)

    @property
    def depth(self) -> int:
        """Hops of the deepest tree."""
        return max(tree.depth for tree in self.trees)

    @property
    def is_optimal(self) -> bool:
        """Whether the rate equals the proven bound."""
        return self.rate == self.bound


@dataclass(frozen=True, slots=True)
class Plan:
    """Packings of every collective on one topology.

    Attributes
    ----------
    size : int
        Number of ranks.
    allreduce : PlannedPacking
        Trees used upwards to reduce and downwards to broadcast.
    broadcast, reduce : tuple of PlannedPacking
        One per root rank, in order.
    allgather, reducescatter : PlannedPacking
        Trees of all roots that share the links; `joint`.
    topology_hash : str
        Hash of the topology that was planned.
    machine : str
        Its name, for people.
    loss : Fraction
        Part of the best rate that might be given up for fewer trees.
    """

    size: int
    allreduce: PlannedPacking
    broadcast: tuple[PlannedPacking, ...]
    reduce: tuple[PlannedPacking, ...]
    allgather: PlannedPacking
    reducescatter: PlannedPacking
    topology_hash: str
    machine: str = ""
    loss: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        for name, packings in (("broadcast", self.broadcast), ("reduce", self.reduce)):
            if len(packings) != self.size:
                raise PlanError(f"{name} has {len(packings)} roots, the plan {self.size} ranks")
            for root, packing in enumerate(packings):
                if any(tree.root != root for tree in packing.trees):
                    raise PlanError(f"{name} from root {root} has a tree with another root")
        alone = (self.allreduce, *self.broadcast, *self.reduce)
        for packing in (*alone, self.allgather, self.reducescatter):
            if packing.size != self.size:
                raise PlanError(f"packing of {packing.size} ranks in a plan of {self.size}")
        if any(packing.joint for packing in alone):
            raise PlanError("trees of all roots, but not for allgather or reducescatter")
        if not (self.allgather.joint and self.reducescatter.joint):
            raise PlanError("allgather and reducescatter need trees of all roots")

    def describe(self) -> str:
        """Return a few lines for people: what each collective uses, and how good that is."""
        head = f"{self.machine or 'plan'}: {self.size} rank{'s' if self.size != 1 else ''}"
        if self.size == 1:
            return f"{head}, nothing to move"
        lines = [head, f"  allreduce: {describe_packing(self.allreduce, with_roots=True)}"]
        for name, packings in (("broadcast", self.broadcast), ("reduce", self.reduce)):
            roots: dict[str, list[Rank]] = {}
            for root, packing in enumerate(packings):
                roots.setdefault(describe_packing(packing, with_roots=False), []).append(root)
            for text, same in roots.items():
                where = "any root" if len(same) == self.size else f"root {_ranks(same)}"
                lines.append(f"  {name}, {where}: {text}")
        for name, packing in (
            ("allgather", self.allgather),
            ("reducescatter", self.reducescatter),
        ):
            lines.append(f"  {name}: {describe_packing(packing, with_roots=False)}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the plan as JSON text; equal plans give equal text."""
        return json.dumps(
            {
                "version": PLAN_VERSION,
                "size": self.size,
                "machine": self.machine,
                "topology_hash": self.topology_hash,
                "loss": str(self.loss),
                "allreduce": packing_out(self.allreduce),
                "broadcast": [packing_out(packing) for packing in self.broadcast],
                "reduce": [packing_out(packing) for packing in self.reduce],
                "allgather": packing_out(self.allgather),
                "reducescatter": packing_out(self.reducescatter),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that `to_json` wrote.

        Raises
        ------
        PlanError
            If `text` is no plan of this version, or one that contradicts itself.
        """
        try:
            data = json.loads(text)
            if data["version"] != PLAN_VERSION:
                raise PlanError(f"plan of version {data['version']}, this is {PLAN_VERSION}")
            return cls(
                size=data["size"],
                allreduce=packing_in(data["allreduce"]),
                broadcast=tuple(packing_in(packing) for packing in data["broadcast"]),
                reduce=tuple(packing_in(packing) for packing in data["reduce"]),
                allgather=packing_in(data["allgather"], joint=True),
                reducescatter=packing_in(data["reducescatter"], joint=True),
                topology_hash=data["topology_hash"],
                machine=data["machine"],
                loss=Fraction(data["loss"]),
            )
        except PlanError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as err:
            raise PlanError(f"text is no plan: {type(err).__name__}: {err}") from err


def describe_packing(packing: PlannedPacking, *, with_roots: bool) -> str:
    """Return one line; allreduce names the roots, whose order is that of the trees."""
    depths = sorted({tree.depth for tree in packing.trees})
    low, high = depths[0], depths[-1]
    hops = f"{low}-to-{high}-hop" if low < high else "one-hop" if high == 1 else f"{high}-hop"
    many = len(packing.trees) != 1
    roots = f", roots {_ranks([tree.root for tree in packing.trees])}" if with_roots else ""
    rate = float(packing.rate)
    return (
        f"{len(packing.trees)} {hops} tree{'s' if many else ''}{roots}, "
        f"{f'{rate:,.0f}' if rate >= 1000 else f'{rate:.4g}'} {packing.unit}, "
        f"{float(100 * packing.rate / packing.bound):.4g} % of the bound (LP certificate)"
    )


def _ranks(ranks: Sequence[Rank]) -> str:
    return " ".join(str(rank) for rank in ranks)


def packing_out(packing: PlannedPacking) -> dict[str, Any]:
    """Return a packing as values that JSON knows."""
    return {
        "shares": packing.shares,
        "rate": str(packing.rate),
        "bound": str(packing.bound),
        "unit": packing.unit,
        "trees": [
            [
                tree.root,
                list(tree.parents),
                tree.start,
                tree.stop,
                _kinds_out(tree, tree.up),
                _kinds_out(tree, tree.down),
            ]
            for tree in packing.trees
        ],
    }


def _kinds_out(tree: PlannedTree, kinds: tuple[str, ...]) -> str | list[str]:
    """Return one name where all edges are of one kind, as nearly always: plans stay short."""
    others = {kind for rank, kind in enumerate(kinds) if rank != tree.root}
    return others.pop() if len(others) == 1 else list(kinds)


@lru_cache(maxsize=1024)
def _same_kind(root: Rank, size: int, kind: str) -> tuple[str, ...]:
    return (kind,) * root + ("",) + (kind,) * (size - root - 1)


@cache  # the same few rates return for every root
def _fraction(text: str) -> Fraction:
    return Fraction(text)


def packing_in(data: Mapping[str, Any], *, joint: bool = False) -> PlannedPacking:
    """Return the packing that `packing_out` wrote; PlanError, LookupError or TypeError if none."""
    return PlannedPacking(
        shares=data["shares"],
        trees=tuple(
            PlannedTree(
                root,
                tuple(parents),
                start,
                stop,
                _same_kind(root, len(parents), up) if isinstance(up, str) else tuple(up),
                _same_kind(root, len(parents), down) if isinstance(down, str) else tuple(down),
            )
            for root, parents, start, stop, up, down in data["trees"]
        ),
        rate=_fraction(data["rate"]),
        bound=_fraction(data["bound"]),
        unit=data["unit"],
        joint=joint,
    )
