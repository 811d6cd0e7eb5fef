"""Makes the tables of docs/planning.md: ``python -m blinkrun.bench.plans docs/planning.md``.

The page holds marked sections; each is replaced by what is computed and timed here, and the
histogram is drawn beside the page. The figures of the Blink paper that are compared with were read
off the published PDF (G. Wang et al., MLSys 2020, arXiv 1910.04940, figure 13).
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import log10
from pathlib import Path
from statistics import geometric_mean, median

from blinkrun import log
from blinkrun.bench.plan_times import time_lines
from blinkrun.errors import UsageError
from blinkrun.planner.advise import Group, advise
from blinkrun.planner.compare import best_root
from blinkrun.planner.network import levels
from blinkrun.planner.packing import Flow
from blinkrun.planner.rings import ring_peer
from blinkrun.planner.solve import pack
from blinkrun.topology import catalog
from blinkrun.topology.bandwidth import DEFAULT
from blinkrun.topology.graph import LinkKind, Topology, induce, select_links
from blinkrun.topology.machine import Machine
from blinkrun.topology.model import LinkSet, lane_mb_per_s, topology_of
from blinkrun.topology.read import read_machine

SIZES = range(2, 9)
ALL_LINKS_UP_TO = 16  # GPUs; a larger machine is compared over its fabric, where all are alike
LOSSES = (Fraction(0), Fraction(1, 20))
FLOWS = (Flow.BOTH, Flow.DOWN)
MOST_SHOWN = 10**6  # allocations of a machine in the histogram

# Figure 13: what the paper expects over rings: 5 %, median and 95 % of its allocations.
PAPER = {
    ("dgx-1p", Flow.BOTH): (0.99, 1.39, 6.1),
    ("dgx-1v", Flow.BOTH): (1.11, 2.04, 6.0),
    ("dgx-1p", Flow.DOWN): (1.00, 1.25, 4.0),
    ("dgx-1v", Flow.DOWN): (1.00, 1.50, 4.0),
}


@dataclass(frozen=True, slots=True)
class Ratios:
    """Rates over the ring library's on all joined allocations of one machine."""

    machine: str
    flow: Flow
    groups: tuple[Group, ...]

    @property
    def counted(self) -> list[tuple[float, int]]:
        """Ratios and how many allocations have each, ascending; without a ring there is none."""
        return sorted(
            (float(group.ratio), group.count) for group in self.groups if group.ratio is not None
        )

    @property
    def allocations(self) -> int:
        """How many allocations have a ratio."""
        return sum(count for _, count in self.counted)

    @property
    def slower(self) -> list[Group]:
        """Those where the ring is faster: there must be none."""
        return [group for group in self.groups if group.rate < group.ring_rate]


def machines(corpus: Path) -> list[Machine]:
    """Return the catalog's machines and those of the recorded reports, at least two GPUs each."""
    found = [catalog.described(name) for name in catalog.machines()]
    for folder in sorted(corpus.iterdir()):
        for file in sorted(folder.glob("input.*")):
            text = file.read_text(encoding="utf-8", errors="replace")
            try:
                read = read_machine(text, folder.name, partial=True)
            except UsageError as err:
                log.say(f"left out: {err}")
                continue
            found.append(read)
    return [machine for machine in found if machine.num_gpus > 1]


def ratios_of(name: str, topology: Topology, flow: Flow, lane: int | None) -> Ratios:
    """Return what every allocation of 2 to 8 GPUs gets over rings; `lane` as for `ring_peer`."""
    groups: list[Group] = []
    for count in SIZES:
        if count <= topology.size:
            groups += advise(topology, topology.devices, count, flow, lane=lane)
    return Ratios(name, flow, tuple(group for group in groups if group.rate))


def ratio_lines(found: Sequence[Ratios]) -> list[str]:
    """Return the table of all machines, and its sum."""
    lines = [
        "| machine | collective | allocations | kinds | least | median | geo-mean | best |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for ratios in found:
        lines.append(_ratio_row(ratios))
    return [*lines, "", _slower(found)]


def _slower(found: Sequence[Ratios]) -> str:
    """Return how many allocations are slower than rings; a rack's are counted in kinds."""
    some = [ratios for ratios in found if ratios.allocations <= MOST_SHOWN]
    racks = [ratios for ratios in found if ratios.allocations > MOST_SHOWN]
    slower = sum(group.count for ratios in some for group in ratios.slower)
    total = sum(ratios.allocations for ratios in some)
    text = f"Slower than rings: {slower} of {total:,} allocations and collectives"
    if racks:
        kinds = sum(len(ratios.groups) for ratios in racks)
        text += f", and {sum(len(r.slower) for r in racks)} of {kinds} kinds of a rack's"
    return text + "."


def _ratio_row(ratios: Ratios) -> str:
    counted = ratios.counted
    head = f"| {ratios.machine} | {ratios.flow} | {ratios.allocations:,} | {len(ratios.groups)} "
    if not counted:
        return head + "| no ring | | | |"
    logs = sum(count * log10(value) for value, count in counted)
    mean = 10 ** (logs / ratios.allocations)
    stats = (counted[0][0], middle(counted), mean, counted[-1][0])
    return head + "".join(f"| {value:.2f} " for value in stats) + "|"


def middle(counted: Sequence[tuple[float, int]]) -> float:
    """Return the median of ascending values that occur so often each.

    >>> middle([(1.0, 1), (2.0, 1), (7.0, 3)])
    7.0
    """
    left = sum(count for _, count in counted) // 2
    for value, count in counted:
        left -= count
        if left < 0:
            return value
    raise ValueError("no values have no median")


def paper_lines(bounds: Path) -> list[str]:
    """Return the distribution on the paper's machines beside its figure 13.

    Every allocation that NVLink joins counts once, however often the machine has it.
    """
    lines = [
        "| machine | collective | links | 5 % | median | 95 % | geo-mean | best |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for (machine, flow), (low, middle, high) in PAPER.items():
        file = bounds / f"{machine.replace('-', '')}_bounds.csv"
        head = f"| {machine} | {flow} "
        lines += [
            f"{head}| NVLink {_spread(_ratios_on_its_sets(machine, flow, file, nvlink_only=True))}",
            f"{head}| NVLink and PCIe {_spread(_ratios_on_its_sets(machine, flow, file))}",
            f"{head}| *paper* | {low:.2f} | {middle:.2f} | {high:.2f} | | |",
        ]
    return lines


def _ratios_on_its_sets(
    machine: str, flow: Flow, bounds: Path, *, nvlink_only: bool = False
) -> list[float]:
    """Return the ratios to rings, which fall back to PCIe where NVLink closes none."""
    whole = catalog.machine(machine, LinkSet.ALL)
    lane = lane_mb_per_s(catalog.described(machine), DEFAULT)
    values = []
    for row in _rows(bounds):
        part = induce(whole, _gpus(row["gpus"]))
        links = select_links(part, [LinkKind.NVLINK]) if nvlink_only else part
        root = best_root(links, flow) if flow.is_rooted else None
        packing, _ = pack(links, flow, root, loss=Fraction(0))
        values.append(float(packing.rate / ring_peer(part, flow, root, lane=lane).rate))
    return values


def _spread(values: Sequence[float]) -> str:
    ascending = sorted(values)
    at = [min(int(part * len(ascending)), len(ascending) - 1) for part in (0.05, 0.95)]
    shown = (
        ascending[at[0]],
        median(ascending),
        ascending[at[1]],
        geometric_mean(ascending),
        ascending[-1],
    )
    return "".join(f"| {value:.2f} " for value in shown) + "|"


def _rows(bounds: Path) -> list[dict[str, str]]:
    with bounds.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def optima_lines(name: str, bounds: Path) -> list[str]:
    """Return rates, trees and depths of every allocation that NVLink joins, beside the bounds."""
    lines = [
        f"| {name} | cut | broadcast | trees, depth at 0 % | at 5 % "
        "| partition bound | allreduce | at 0 % | at 5 % |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    exact = 0
    rows = _rows(bounds)
    for row in rows:
        gpus = _gpus(row["gpus"])
        part = induce(catalog.machine(name), gpus)
        down, at_root = _cells(part, Flow.DOWN, 0)
        both, anywhere = _cells(part, Flow.BOTH, None)
        wanted = Fraction(row["min_cut_lanes"]), Fraction(row["partition_bound_lanes"])
        # the file has two decimals: 24/7 stands there as 3.43
        exact += down == wanted[0] and abs(both - wanted[1]) < Fraction(1, 100)
        lines.append(
            f"| {' '.join(map(str, gpus))} | {row['min_cut_lanes']} | {down} {at_root} "
            f"| {row['partition_bound_lanes']} | {both} {anywhere} |"
        )
    lines += ["", f"At the bound, with a certificate: {exact} of {len(rows)}."]
    return lines


def _gpus(text: str) -> list[int]:
    """Return the GPUs of a row; ``any 7`` stands for sets that are all alike.

    >>> _gpus("1 4 5"), _gpus("any 3")
    ([1, 4, 5], [0, 1, 2])
    """
    first, *rest = text.split()
    return list(range(int(rest[0]))) if first == "any" else [int(first), *map(int, rest)]


def _cells(part: Topology, flow: Flow, root: int | None) -> tuple[Fraction, str]:
    """Return the best rate, and the cells that tell trees and depth at each loss."""
    cells = ""
    rates = []
    for loss in LOSSES:
        packing, _ = pack(part, flow, root, loss=loss)
        rates.append(packing.rate)
        depth = max(max(levels(tree.parents(part.size))) for tree in packing.trees)
        cells += f"| {len(packing.trees)}, {depth} "
    return rates[0], cells.rstrip()


def replace_section(page: str, name: str, lines: Iterable[str]) -> str:
    """Return the page with what stands between the marks of a section replaced.

    Raises
    ------
    UsageError
        If the page has no such section.
    """
    start, stop = f"<!-- measured: {name} -->", "<!-- end -->"
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(stop), re.DOTALL)
    text = "\n".join([start, "", *lines, "", stop])
    changed, count = pattern.subn(lambda _: text, page)
    if count != 1:
        raise UsageError(f"the page has {count} sections '{start}', need 1")
    return changed


def all_ratios(corpus: Path) -> list[Ratios]:
    """Return the ratios of every machine and collective; long, so it tells how far it is."""
    found: list[Ratios] = []
    for machine in machines(corpus):
        wide = machine.num_gpus > ALL_LINKS_UP_TO
        try:
            topology = topology_of(machine, LinkSet.NVLINK if wide else LinkSet.ALL)
        except UsageError as err:
            log.say(f"left out: {err}")
            continue
        lane = None if wide else lane_mb_per_s(machine, DEFAULT) or None
        for flow in FLOWS:
            log.say(f"{machine.name}: {flow}")
            found.append(ratios_of(machine.name, topology, flow, lane))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Fill the sections of a page and draw the histogram beside it."""
    parser = argparse.ArgumentParser(prog="python -m blinkrun.bench.plans", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--corpus", type=Path, default=Path("tests/data/topologies"))
    parser.add_argument("--bounds", type=Path, default=Path("tests/data/paper"))
    parser.add_argument("--only", choices=("optima", "ratios", "paper", "times"))
    options = parser.parse_args(argv)
    page = options.page.read_text(encoding="utf-8")
    parts: dict[str, Callable[[], dict[str, list[str]]]] = {
        "optima": lambda: {
            "optima dgx-1v": optima_lines("dgx-1v", options.bounds / "dgx1v_bounds.csv"),
            "optima dgx-1p": optima_lines("dgx-1p", options.bounds / "dgx1p_bounds.csv"),
        },
        "ratios": lambda: _ratio_sections(options.corpus, options.page.with_suffix(".svg")),
        "paper": lambda: {"figure 13": paper_lines(options.bounds)},
        "times": lambda: {"times": time_lines()},
    }
    for name, part in parts.items():
        if options.only in (None, name):
            for section, lines in part().items():
                page = replace_section(page, section, lines)
    options.page.write_text(page, encoding="utf-8")
    return 0


def _ratio_sections(corpus: Path, picture: Path) -> dict[str, list[str]]:
    from blinkrun.bench.plans_plot import draw_histogram  # noqa: PLC0415 (matplotlib, an extra)

    found = all_ratios(corpus)
    # a rack has more allocations than all other machines together, and all are alike
    shown = [ratios for ratios in found if ratios.allocations <= MOST_SHOWN]
    draw_histogram(
        {flow: [x for r in shown if r.flow is flow for x in r.counted] for flow in FLOWS}, picture
    )
    return {"ratios": ratio_lines(found)}


if __name__ == "__main__":
    sys.exit(main())
