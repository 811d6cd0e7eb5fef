"""A machine from what AMD's tools say of pairs of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from blinkrun.errors import ReportError
from blinkrun.topology.amd_tables import AmdReport, Cell, Kind
from blinkrun.topology.complaints import Complaints
from blinkrun.topology.machine import Gpu, Machine, PciPath, Xgmi

_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)
_UNTOLD = frozenset({"N/A", "NA", "-", "XXXX", "UNKNOWN", "NONE", "NOT_APPLICABLE"})
_ACCESS = {"ENABLED": "OK", "TRUE": "OK", "DISABLED": "NS", "FALSE": "NS"}
_LINK_TYPES = ("XGMI", "PCIE")
_MOST_GPUS = 1024


def machine_of(report: AmdReport, tool: str, complaints: Complaints) -> Machine:
    """Return the machine of a report.

    Parameters
    ----------
    report : AmdReport
    tool : str
        What printed it, for `Machine.source`.
    complaints : Complaints
        Where to tell of cells that make no sense.

    Raises
    ------
    ReportError
        If the report names no GPU or, unless the read is partial, contradicts itself.
    """
    source = complaints.source
    if not report.names:
        raise ReportError(source, 0, f"no GPU in the report; expected the tables of {tool}")
    if len(report.names) > _MOST_GPUS:
        problem = f"{len(report.names)} GPUs; expected at most {_MOST_GPUS}"
        raise ReportError(source, 0, problem)
    pairs = _Pairs(report, complaints)
    xgmi: list[Xgmi] = []
    pcie: list[PciPath] = []
    p2p: list[tuple[int, int, str]] = []
    for low, high in combinations(range(len(report.names)), 2):
        kind = pairs.word(Kind.TYPE, low, high, _LINK_TYPES)
        hops, weight = pairs.count(Kind.HOPS, low, high), pairs.count(Kind.WEIGHT, low, high)
        access = pairs.word(Kind.ACCESS, low, high, _ACCESS.keys())
        if kind == "XGMI":
            xgmi.append(Xgmi(low, high, hops=hops, weight=weight))
        elif kind == "PCIE":
            pcie.append(PciPath(low, high, kind, hops, weight))
        if access:
            p2p.append((low, high, _ACCESS[access]))
    is_told = Kind.TYPE in report.cells
    return Machine(
        name=source,
        source=tool,
        gpus=tuple(_gpu(name, report) for name in report.names),
        nvlink=() if is_told else None,
        xgmi=tuple(xgmi),
        pcie=tuple(pcie) if is_told else None,
        p2p=tuple(p2p),
        missing=tuple(report.missing),
        notes=(*complaints.notes, *_remarks(report, len(xgmi) + len(pcie))),
    )


@dataclass(slots=True)
class _Pairs:
    """Looks up what a report says of a pair, in both of its rows."""

    report: AmdReport
    complaints: Complaints

    def word(self, kind: Kind, low: int, high: int, known: Iterable[str]) -> str | None:
        """Return the word of a pair, None where it is not told or makes no sense."""
        told = self._told(kind, low, high)
        if told and told.word not in known:
            expected = " or ".join(known)
            self._complain(told, kind, low, high, f"'{told.word}'; expected {expected}")
            return None
        return told.word if told else None

    def count(self, kind: Kind, low: int, high: int) -> int | None:
        """Return the number of a pair, None where it is not told or makes no sense."""
        told = self._told(kind, low, high)
        if told and not _COUNT.fullmatch(told.word):
            self._complain(told, kind, low, high, f"'{told.word}'; expected a whole number")
            return None
        return int(told.word) if told else None

    def _told(self, kind: Kind, low: int, high: int) -> Cell | None:
        cells = self.report.cells.get(kind, {})
        there, back = cells.get((low, high)), cells.get((high, low))
        if there and back and there.word != back.word:
            problem = f"'{back.word}', the other row '{there.word}'; expected the same"
            self._complain(back, kind, low, high, problem)
            return None
        told = there or back
        return None if told is None or told.word in _UNTOLD else told

    def _complain(self, cell: Cell, kind: Kind, low: int, high: int, problem: str) -> None:
        names = self.report.names
        pair = f"{names[low]} and {names[high]}"
        self.complaints.add(cell.line, f"the {kind} table says of {pair} {problem}")


def _gpu(name: str, report: AmdReport) -> Gpu:
    if ":" in name:
        return Gpu(name, bus_id=name)
    numa = report.numa.get(int(name.removeprefix("GPU")), -1)
    return Gpu(name, numa=numa if numa >= 0 else None)


def _remarks(report: AmdReport, num_told: int) -> list[str]:
    pairs = len(report.names) * (len(report.names) - 1) // 2
    if Kind.TYPE not in report.cells:
        return ["no link type table, so it is not told which pairs xGMI joins"]
    if num_told < pairs:
        return [f"of {pairs - num_told} pairs it is not told what joins them"]
    return []
