"""Which parts of a paste of nvidia-smi's belong to one machine.

A matrix of ``topo -m`` makes a machine. Matrices of ``topo -p2p`` and lists of GPUs belong to the
matrix above them if they fit it, else to the one below; where there is none they are a machine of
their own, of which less is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from blinkrun.errors import ReportError
from blinkrun.topology import nvidia_words as words
from blinkrun.topology.nvidia_grid import MAX_GPUS
from blinkrun.topology.nvidia_matrix import Matrix, read_matrix
from blinkrun.topology.nvidia_status import Listing, find_listings
from blinkrun.topology.nvidia_tables import Table, find_tables
from blinkrun.topology.paste import Line

MAX_REPORTS = 256

_T = TypeVar("_T", Table, Listing)
_LEGEND = re.compile(r"\b(NIC\d+)\s?[:=]\s?([A-Za-z][\w.-]*)")
_CAPABILITY = re.compile(r"-p2p(?:status)?[ =]+([rwnap]+)\b")
_PCI_ONLY = re.compile(r"\btopo\s+(?:-mp|--matrix-pci)\b")
_NEAR = 40  # lines above a matrix, among which its command may be


@dataclass(slots=True)
class Report:
    """What belongs to one machine.

    Attributes
    ----------
    matrix : Matrix or None
        Of ``topo -m``.
    states : list of (Matrix, str)
        Of ``topo -p2p``, each with the capability that was asked for, as far as the command is
        there (``r``, ``rw``, …; else empty).
    listings : list of Listing
        In the order of the paste.
    pci_only : Matrix or None
        Of ``topo -mp``: the same devices, NVLinks left out.
    devices : dict of str to str
        The legend of the NICs.
    """

    matrix: Matrix | None = None
    states: list[tuple[Matrix, str]] = field(default_factory=list)
    listings: list[Listing] = field(default_factory=list)
    pci_only: Matrix | None = None
    devices: dict[str, str] = field(default_factory=dict)

    @property
    def base(self) -> Matrix | None:
        """The matrix that tells the GPUs, if there is one."""
        return self.matrix or next((matrix for matrix, _ in self.states), None)

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.base.line if self.base else self.listings[0].line

    @property
    def names(self) -> tuple[str, ...]:
        """Its GPUs in order."""
        if self.base:
            return tuple(gpu.name for gpu in self.base.gpus)
        return tuple(dict.fromkeys(name for listing in self.listings for name in listing.names))


def find_reports(lines: Sequence[Line], source: str, *, partial: bool) -> tuple[Report, ...]:
    """Return the reports of a paste in order, none if there is nothing of nvidia-smi in it.

    Raises
    ------
    ReportError
        If a matrix is broken (with `partial`: if nothing of any is whole), or there are more than
        256 reports, or one of more than 256 GPUs.
    """
    tables = _matrices_among(_few(find_tables(lines), source))
    listings = _few(find_listings(lines, [table.line for table in tables]), source)
    matrices = _readable(tables, source) if partial else [read_matrix(t, source) for t in tables]
    text = _Text(lines, tables)
    reports = [
        Report(matrix, devices=dict(text.legend(matrix.line)))
        for matrix in matrices
        if not matrix.is_p2p
    ]
    for matrix in matrices:
        if matrix.is_p2p:
            _attach_states(reports, matrix, text.capability(matrix.line))
    for listing in listings:
        _attach_listing(reports, listing)
    for report in reports:
        if len(report.names) > MAX_GPUS:
            problem = f"a list of {len(report.names)} GPUs, expected at most {MAX_GPUS}"
            raise ReportError(source, report.line, problem)
    return _joined(reports, text)


def is_message(table: Table) -> bool:
    """Whether a table is no matrix: ``GPU0 OK``, ``GPU1 OK``."""
    return not table.columns and not all(words.SELF in row.words for row in table.rows)


class _Text:
    """Finds what stands around the matrices of a paste."""

    def __init__(self, lines: Sequence[Line], tables: Sequence[Table]) -> None:
        self._lines = lines
        self._starts = sorted(table.line for table in tables)
        self._ends = sorted(table.last_line for table in tables)

    def _above(self, line: int) -> Iterator[str]:
        """Yield the lines above a matrix that begins in `line`, up to another one, last first."""
        end = max((end for end in self._ends if end < line), default=0)
        found = [one.text for one in self._lines if end < one.number <= line]
        return reversed(found[-_NEAR:])

    def capability(self, line: int) -> str:
        """Return what ``topo -p2p`` was asked for, of the matrix that begins in `line`."""
        found = (_CAPABILITY.search(text) for text in self._above(line))
        return next((match[1] for match in found if match), "")

    def is_pci_only(self, line: int) -> bool:
        """Whether the matrix that begins in `line` is one of ``topo -mp``."""
        commands = (text for text in self._above(line) if "topo" in text)
        return _PCI_ONLY.search(next(commands, "")) is not None

    def legend(self, line: int) -> Iterator[tuple[str, str]]:
        """Yield what the legend of the matrix that begins in `line` says of NICs."""
        end = min((start for start in self._starts if start > line), default=1 << 60)
        for one in self._lines:
            if line <= one.number < end:
                yield from _LEGEND.findall(one.text)


def _few(found: Sequence[_T], source: str) -> Sequence[_T]:
    """Return what was found, once each if it is very much: a log may have it for every rank."""
    if len(found) > MAX_REPORTS:
        found = list({one.content: one for one in reversed(found)}.values())[::-1]
    if len(found) > MAX_REPORTS:
        problem = f"{len(found)} reports in one text, expected at most {MAX_REPORTS}"
        raise ReportError(source, found[MAX_REPORTS].line, problem)
    return found


def _matrices_among(tables: Sequence[Table]) -> list[Table]:
    """Return the tables that are matrices, without those that only quote another one."""
    kept: list[Table] = []
    for table in tables:
        if table.rows and not is_message(table) and not _is_quote(table, kept):
            kept.append(table)
    with_rows = {table.columns for table in kept}
    for table in tables:  # a header alone is a broken matrix, unless it is only mentioned
        if not table.rows and table.columns not in with_rows and (table.headings or not kept):
            kept.append(table)
    return sorted(kept, key=lambda table: table.line)


def _is_quote(table: Table, matrices: Sequence[Table]) -> bool:
    """Whether a table only has some rows of a matrix above once more, or as they were later."""
    if table.labels >= {name for name in table.columns if words.is_gpu(name)}:
        return False
    stated = {(row.label, row.words) for other in matrices for row in other.rows}
    rows = {(row.label, row.words) for row in table.rows}
    return table.is_again or rows <= stated


def _readable(tables: Sequence[Table], source: str) -> list[Matrix]:
    """Return the matrices of which something is whole; at least one if there are any."""
    matrices: list[Matrix] = []
    errors: list[ReportError] = []
    for table in tables:
        try:
            matrices.append(read_matrix(table, source, partial=True))
        except ReportError as error:
            errors.append(error)
    if errors and not matrices:
        raise errors[0]
    if errors:
        notes = (f"left out: the matrix in line {error.line}: {error.problem}" for error in errors)
        matrices[0] = replace(matrices[0], notes=(*matrices[0].notes, *notes))
    return matrices


def _owner(
    reports: Sequence[Report], line: int, accepts: Callable[[Report], bool]
) -> Report | None:
    """Return the report that something in `line` belongs to: the one above, else the one below."""
    above = [report for report in reports if report.line <= line][-1:]
    below = [report for report in reports if report.line > line][:1]
    return next((report for report in (*above, *below) if accepts(report)), None)


def _attach_states(reports: list[Report], matrix: Matrix, capability: str) -> None:
    """Add a matrix of ``topo -p2p`` to the machine that it is of, or as one of its own."""
    names = {gpu.name for gpu in matrix.gpus}
    owner = _owner(reports, matrix.line, lambda report: names <= set(report.names))
    if owner:
        owner.states.append((matrix, capability))
    else:
        _insert(reports, Report(states=[(matrix, capability)]))


def _attach_listing(reports: list[Report], listing: Listing) -> None:
    """Add a list of GPUs to the machine that it is of, or as one of its own."""
    owner = _owner(reports, listing.line, lambda report: _fits(report, listing))
    if owner is None and any(report.matrix for report in reports):
        owner = _owner(reports, listing.line, lambda report: not _contradicts(report, listing))
    if owner:
        owner.listings.append(listing)
    else:
        _insert(reports, Report(listings=[listing]))


def _insert(reports: list[Report], report: Report) -> None:
    reports.append(report)
    reports.sort(key=lambda one: one.line)


def _fits(report: Report, listing: Listing) -> bool:
    is_known = not report.names or set(listing.names) <= set(report.names)
    return is_known and not _contradicts(report, listing)


def _contradicts(report: Report, listing: Listing) -> bool:
    """Whether a report has something else already of what a list says."""
    said = {status.gpu: status for other in report.listings for status in other.status}
    uuids = {name: uuid for other in report.listings for name, uuid in other.uuids.items()}
    models = {name: model for other in report.listings for name, model in other.models.items()}
    return (
        any(said.get(status.gpu, status) != status for status in listing.status)
        or any(uuids.get(name, uuid) != uuid for name, uuid in listing.uuids.items())
        or any(models.get(name) not in (None, "", model) for name, model in listing.models.items())
    )


def _joined(reports: Sequence[Report], text: _Text) -> tuple[Report, ...]:
    """Return the reports, ``topo -mp`` joined to the ``topo -m`` of the same machine beside it."""
    joined: list[Report] = []
    for report in reports:
        pair = _pair(joined[-1], report, text) if joined else None
        if pair is None:
            joined.append(report)
        else:
            main, pci = pair
            main.pci_only = pci.matrix
            main.states += pci.states
            main.listings += pci.listings
            joined[-1] = main
    return tuple(joined)


def _pair(first: Report, second: Report, text: _Text) -> tuple[Report, Report] | None:
    """Return ``topo -m`` and ``topo -mp`` of one machine, if the two reports are that."""
    is_same = first.matrix and second.matrix and first.names == second.names
    if not is_same or first.pci_only:
        return None
    are_pci = [_is_pci_only(report, text) for report in (first, second)]
    if are_pci[0] == are_pci[1]:
        return None
    return (second, first) if are_pci[0] else (first, second)


def _is_pci_only(report: Report, text: _Text) -> bool:
    has_nvlink = report.matrix is not None and report.matrix.nvlink
    return not has_nvlink and text.is_pci_only(report.line)
