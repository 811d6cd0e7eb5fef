"""A model trained on some GPUs of a DGX-1V: steps with rings and with trees, and the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import permutations

from blinkrun.paper import data
from blinkrun.paper.links import allocation, fabric_alone
from blinkrun.paper.models import Model
from blinkrun.paper.training_compute import compute_of, gradients
from blinkrun.paper.training_times import MACHINE, Tables
from blinkrun.simulator.overlap import DDP_BUCKETS, Step, TimeNs, training_step

READ = Fraction(12, 10)
"""How far, as a factor, a share may lie outside of figure 5's range and still be said to fit."""

_ANY_SEVEN = (1, 2, 3, 4, 5, 6, 7)  # all sets of seven have the same bounds and as many rings


@dataclass(frozen=True, slots=True)
class Trained:
    """A row of figure 17.

    Attributes
    ----------
    configuration : str
        As the paper has it: how many GPUs, and which.
    gpus : tuple of int
    model : Model
    tables : Tables
        Times of allreduces on these GPUs.
    paper_iteration_pct, paper_comm_pct : Fraction or None
        What the paper saves; None where it is not legible.
    """

    configuration: str
    gpus: tuple[int, ...]
    model: Model
    tables: Tables
    paper_iteration_pct: Fraction | None
    paper_comm_pct: Fraction | None

    @property
    def ring(self) -> Step:
        """A step with rings, allreduces after the backward pass."""
        return step(self.model, self.tables.ring)

    @property
    def blink(self) -> Step:
        """The same with trees over all links."""
        return step(self.model, self.tables.blink)

    @property
    def nvlink(self) -> Step:
        """The same with trees over NVLink alone."""
        return step(self.model, self.tables.nvlink)

    @property
    def hidden(self) -> tuple[Step, Step]:
        """Steps with rings and trees whose allreduces start as soon as a bucket is full."""
        return (
            step(self.model, self.tables.ring, overlaps=True),
            step(self.model, self.tables.blink, overlaps=True),
        )

    @property
    def iteration_saved_pct(self) -> Fraction:
        """Of an iteration's time, by trees over rings."""
        return saved_pct(self.ring.iteration_ns, self.blink.iteration_ns)

    @property
    def comm_saved_pct(self) -> Fraction:
        """Of the allreduces' time."""
        return saved_pct(self.ring.communication_ns, self.blink.communication_ns)

    @property
    def nvlink_comm_saved_pct(self) -> Fraction:
        """Of the allreduces' time, without PCIe."""
        return saved_pct(self.ring.communication_ns, self.nvlink.communication_ns)

    @property
    def bars_comm_saved_pct(self) -> Fraction:
        """What the paper's own allreduce bars (figure 16) let these GPUs save of that time."""
        bars = bars_of(self.gpus)
        blink, nccl = (Fraction(bars[f"allreduce_{which}_gb_s"]) for which in ("blink", "nccl"))
        return 100 - 100 * nccl / blink

    @property
    def share_pct(self) -> Fraction:
        """Part of an iteration that rings communicate."""
        return Fraction(100 * self.ring.communication_ns, self.ring.iteration_ns)

    @property
    def paper_share_pct(self) -> tuple[Fraction, Fraction]:
        """Between what and what it lies in figure 5, over all sets of so many GPUs."""
        return share_range(len(self.gpus), self.model)

    @property
    def share_fits(self) -> bool:
        """Whether our part lies there."""
        return self.fits(self.share_pct)

    def fits(self, share_pct: Fraction) -> bool:
        """Whether a part of an iteration lies in figure 5's range, give or take `READ`."""
        low, high = self.paper_share_pct
        return low / READ <= share_pct <= high * READ


def trained(
    paper: Mapping[str, str], gpus: tuple[int, ...], model: Model, tables: Tables
) -> Trained:
    """Return a model on the GPUs of a row of the paper's figure."""
    return Trained(
        paper["configuration"],
        gpus,
        model,
        tables,
        _number(paper[f"{model.name}_iter_pct"]),
        _number(paper[f"{model.name}_comm_pct"]),
    )


def step(model: Model, time_ns: TimeNs, *, overlaps: bool = False) -> Step:
    """Return a model's step in the setting of all rows, given the times of allreduces.

    Examples
    --------
    >>> from blinkrun.paper.models import model
    >>> vgg16 = model("vgg16")
    >>> ring, blink = step(vgg16, lambda size: size // 5), step(vgg16, lambda size: size // 40)
    >>> [round(one.iteration_ns / 1e6) for one in (ring, blink)]
    [228, 131]
    """
    compute = compute_of(model)
    return training_step(
        gradients(model, compute),
        forward_ns=compute.forward_ns,
        caps_bytes=DDP_BUCKETS,
        time_ns=time_ns,
        overlaps=overlaps,
    )


def saved_pct(before: int, after: int) -> Fraction:
    """Return by how many percent of `before` a time got shorter; negative if longer.

    >>> saved_pct(200, 150), saved_pct(100, 110)
    (Fraction(25, 1), Fraction(-10, 1))
    """
    return 100 - Fraction(100 * after, before)


def gpus_in(configuration: str) -> tuple[int, ...]:
    """Return the GPUs of a row of figure 17, such as ``3 (0,1,2)`` or ``7``.

    >>> gpus_in("3 (3,6,7)"), gpus_in("8")
    ((3, 6, 7), (0, 1, 2, 3, 4, 5, 6, 7))
    """
    count, _, listed = configuration.partition(" ")
    if listed:
        return tuple(int(gpu) for gpu in listed.strip("()").split(","))
    return _ANY_SEVEN if count == "7" else tuple(range(int(count)))


def share_range(num_gpus: int, model: Model) -> tuple[Fraction, Fraction]:
    """Return between which shares of an iteration figure 5 has NCCL, in percent.

    Examples
    --------
    >>> from blinkrun.paper.models import model
    >>> share_range(5, model("resnet50")), share_range(8, model("resnet50"))
    ((Fraction(12, 1), Fraction(79, 2)), (Fraction(16, 1), Fraction(16, 1)))
    """
    shares = {int(row["gpus"]): row[model.name] for row in data.rows("fig05_nccl_comm_share_pct")}
    parts = [Fraction(part) for part in shares[num_gpus].split("-")]
    return parts[0], parts[-1]


@cache
def bars_of(gpus: tuple[int, ...]) -> Mapping[str, str]:
    """Return the row of figures 14 and 16 whose GPUs are wired like these.

    >>> bars_of((0, 1, 2, 3))["gpus"]
    '4 5 6 7'
    """
    rows = {data.gpus_of(row["gpus"]): row for row in data.rows("fig14_16_dgx1v")}
    if gpus in rows:
        return rows[gpus]
    return next(row for other, row in rows.items() if is_wired_alike(gpus, other))


def is_wired_alike(gpus: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two allocations of a DGX-1V have the same lanes, whatever the GPUs are called.

    >>> is_wired_alike([0, 1, 2], [4, 5, 7]), is_wired_alike([0, 1, 2], [5, 6, 7])
    (True, False)
    """
    wanted = _lanes(gpus)
    if len(gpus) != len(other) or sorted(wanted.values()) != sorted(_lanes(other).values()):
        return False
    return any(_lanes(turned) == wanted for turned in permutations(other))


@cache
def _all_lanes() -> dict[tuple[int, int], int]:
    topology = fabric_alone(allocation(MACHINE))
    width = {resource.name: resource.capacity for resource in topology.resources}
    return {
        (link.src, link.dst): min(width[name] for name in link.resources) for link in topology.links
    }


def _lanes(gpus: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return the width of NVLink between GPUs, by their places in `gpus`."""
    return {
        (src, dst): _all_lanes()[gpus[src], gpus[dst]]
        for src, dst in permutations(range(len(gpus)), 2)
        if (gpus[src], gpus[dst]) in _all_lanes()
    }


def _number(text: str) -> Fraction | None:
    return Fraction(text) if text else None
