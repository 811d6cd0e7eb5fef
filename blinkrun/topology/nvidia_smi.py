"""What nvidia-smi says of a machine: ``topo -m``, ``topo -p2p``, ``nvlink --status``, ``-L``.

In any mix, in any order, several machines in one text, and with whatever a paste has around them:
a prompt, a log, an environment report. A machine is a matrix of ``topo -m`` and what stands near
it and speaks of the same GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from blinkrun.errors import ReportError
from blinkrun.topology import nvidia_words as words
from blinkrun.topology.machine import Gpu, LinkStatus, Machine, PciPath
from blinkrun.topology.nvidia_matrix import MAX_GPUS, Matrix, read_matrix
from blinkrun.topology.nvidia_status import UNKNOWN, Listing, find_listings
from blinkrun.topology.nvidia_tables import Table, find_tables
from blinkrun.topology.paste import Line, clean_lines
from blinkrun.topology.paste_tags import untagged

MAX_REPORTS = 256

_T = TypeVar("_T", Table, Listing)
_GPU = re.compile(r"\bGPU ?\d")
_LEGEND = re.compile(r"\b(NIC\d+)\s?[:=]\s?([A-Za-z][\w.-]*)")
_CAPABILITY = re.compile(r"-p2p(?:status)?[ =]+([rwnap]+)\b")
_PCI_ONLY = re.compile(r"\btopo\s+(?:-mp|--matrix-pci)\b")
_PEER_CAPABILITIES = "rwp"  # n and a tell of NVLink and of atomics alone


def looks_like_nvidia_smi(text: str) -> bool:
    r"""Whether a text has something in it that nvidia-smi prints about how GPUs are joined.

    >>> looks_like_nvidia_smi("\tGPU0\tGPU1\nGPU0\t X \tNV2"), looks_like_nvidia_smi("GPU0 0 XGMI")
    (True, False)
    """
    try:
        lines = untagged(clean_lines(text))
    except ReportError:  # too long: reading it says so, with the file's name
        return _GPU.search(text) is not None
    tables = find_tables(lines)
    is_any = any(table.headings or (table.rows and not _is_message(table)) for table in tables)
    return is_any or bool(find_listings(lines))


def read_nvidia_smi(text: str, source: str = "-", *, partial: bool = False) -> Machine:
    r"""Return the first machine of a text.

    Parameters
    ----------
    text : str
        What nvidia-smi printed, with anything around it.
    source : str, default "-"
        The file's name, for messages and as the machine's name.
    partial : bool, default False
        Whether to take what is whole if not all of it is.

    Raises
    ------
    ReportError
        If there is nothing of nvidia-smi, or something of it is broken.

    Examples
    --------
    >>> text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-7\nGPU1\tNV2\t X \t0-7"
    >>> read_nvidia_smi(text).nvlink
    (Wire(low=0, high=1, lanes=2),)
    """
    return read_nvidia_reports(text, source, partial=partial)[0]


def read_nvidia_reports(
    text: str, source: str = "-", *, partial: bool = False
) -> tuple[Machine, ...]:
    """Return all machines of a text in order, at least one.

    Parameters
    ----------
    text, source, partial
        As for `read_nvidia_smi`.

    Raises
    ------
    ReportError
        If there is nothing of nvidia-smi, or one of the reports is broken.
    """
    lines = untagged(clean_lines(text, source))
    tables = _matrices_among(_few(find_tables(lines), source))
    listings = _few(find_listings(lines, [table.line for table in tables]), source)
    matrices = _readable(tables, source) if partial else [read_matrix(t, source) for t in tables]
    reports = [_Report(matrix) for matrix in matrices if not matrix.is_p2p]
    for matrix in matrices:
        if matrix.is_p2p:
            _attach_states(reports, matrix)
    for listing in listings:
        _attach_listing(reports, listing)
    if not reports:
        problem = "nothing of nvidia-smi here, expected a header GPU0 GPU1 … and a row for each GPU"
        raise ReportError(source, 0, problem)
    _check_sizes(reports, source)
    text_of = _Text(lines, tables)
    return tuple(_machine(report, source, text_of) for report in _joined(reports, text_of))


@dataclass(slots=True)
class _Report:
    """What belongs to one machine."""

    matrix: Matrix | None
    states: list[Matrix] = field(default_factory=list)
    listings: list[Listing] = field(default_factory=list)
    pci_only: Matrix | None = None

    @property
    def line(self) -> int:
        first = self.matrix or next(iter(self.states), None)
        return first.line if first else self.listings[0].line

    @property
    def names(self) -> tuple[str, ...]:
        first = self.matrix or next(iter(self.states), None)
        if first:
            return tuple(gpu.name for gpu in first.gpus)
        return tuple(dict.fromkeys(name for listing in self.listings for name in listing.names))


class _Text:
    """Finds what stands between the matrices of a paste."""

    def __init__(self, lines: Sequence[Line], tables: Sequence[Table]) -> None:
        self._lines = lines
        self._starts = sorted(table.line for table in tables)
        self._ends = sorted(table.last_line for table in tables)

    def before(self, line: int) -> Iterator[str]:
        """Yield the lines above a matrix that begins in `line`, up to another one, last first."""
        end = max((end for end in self._ends if end < line), default=0)
        found = [one.text for one in self._lines if end < one.number <= line]
        return reversed(found[-40:])

    def within(self, line: int) -> Iterator[str]:
        """Yield the lines from a matrix's first one to the next matrix."""
        end = min((start for start in self._starts if start > line), default=1 << 60)
        return (one.text for one in self._lines if line <= one.number < end)


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
        if table.rows and not _is_message(table) and not _is_quote(table, kept):
            kept.append(table)
    with_rows = {table.columns for table in kept}
    for table in tables:  # a header alone is a broken matrix, unless it is only mentioned
        if not table.rows and table.columns not in with_rows and (table.headings or not kept):
            kept.append(table)
    return sorted(kept, key=lambda table: table.line)


def _is_message(table: Table) -> bool:
    """Whether it is no matrix: ``GPU0 OK``, ``GPU1 OK``."""
    return not table.columns and not all(words.SELF in row.words for row in table.rows)


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
    reports: Sequence[_Report], line: int, accepts: Callable[[_Report], bool]
) -> _Report | None:
    """Return the report that something in `line` belongs to: the one above, else the one below."""
    above = [report for report in reports if report.line <= line][-1:]
    below = [report for report in reports if report.line > line][:1]
    return next((report for report in (*above, *below) if accepts(report)), None)


def _attach_states(reports: list[_Report], matrix: Matrix) -> None:
    """Add a matrix of ``topo -p2p`` to the machine that it is of, or as one of its own."""
    names = {gpu.name for gpu in matrix.gpus}
    owner = _owner(reports, matrix.line, lambda report: names <= set(report.names))
    if owner is None:
        owner = _Report(None)
        owner.states.append(matrix)
        reports.append(owner)
        reports.sort(key=lambda report: report.line)
    else:
        owner.states.append(matrix)


def _attach_listing(reports: list[_Report], listing: Listing) -> None:
    """Add a list of GPUs to the machine that it is of, or as one of its own."""
    owner = _owner(reports, listing.line, lambda report: _fits(report, listing))
    if owner is None and any(report.matrix for report in reports):
        owner = _owner(reports, listing.line, lambda report: not _contradicts(report, listing))
    if owner is None:
        owner = _Report(None)
        owner.listings.append(listing)
        reports.append(owner)
        reports.sort(key=lambda report: report.line)
    else:
        owner.listings.append(listing)


def _fits(report: _Report, listing: Listing) -> bool:
    is_known = not report.names or set(listing.names) <= set(report.names)
    return is_known and not _contradicts(report, listing)


def _contradicts(report: _Report, listing: Listing) -> bool:
    """Whether a report has something else already of what a list says."""
    said = {status.gpu: status for other in report.listings for status in other.status}
    uuids = {name: uuid for other in report.listings for name, uuid in other.uuids.items()}
    models = {name: model for other in report.listings for name, model in other.models.items()}
    return (
        any(said.get(status.gpu, status) != status for status in listing.status)
        or any(uuids.get(name, uuid) != uuid for name, uuid in listing.uuids.items())
        or any(models.get(name) not in (None, "", model) for name, model in listing.models.items())
    )


def _check_sizes(reports: Sequence[_Report], source: str) -> None:
    for report in reports:
        if len(report.names) > MAX_GPUS:
            problem = f"a list of {len(report.names)} GPUs, expected at most {MAX_GPUS}"
            raise ReportError(source, report.line, problem)


def _joined(reports: Sequence[_Report], text: _Text) -> list[_Report]:
    """Return the reports, ``topo -mp`` joined to the ``topo -m`` of the same machine beside it."""
    joined: list[_Report] = []
    for report in reports:
        last = joined[-1] if joined else None
        if last is None or not (last.matrix and report.matrix) or last.names != report.names:
            joined.append(report)
            continue
        of_pci = [one for one in (last, report) if _is_pci_only(one, text)]
        if len(of_pci) != 1 or last.pci_only:
            joined.append(report)
            continue
        main = report if of_pci[0] is last else last
        joined[-1] = _Report(
            main.matrix,
            [*last.states, *report.states],
            [*last.listings, *report.listings],
            of_pci[0].matrix,
        )
    return joined


def _is_pci_only(report: _Report, text: _Text) -> bool:
    above = text.before(report.line) if report.matrix and not report.matrix.nvlink else iter(())
    commands = (line for line in above if "topo" in line)
    return any(_PCI_ONLY.search(line) for line in (next(commands, ""),))


def _machine(report: _Report, source: str, text: _Text) -> Machine:
    """Return the machine that a report states."""
    status, clashes = _status(report)
    states, told = _states(report, text)
    matrix = report.matrix
    machine = Machine(
        name=source,
        source=_kinds(report),
        gpus=tuple(_gpus(report, status)),
        nvlink=None,
        pcie=None,
        p2p=states,
        status=tuple(status.values()),
        missing=tuple(dict.fromkeys(name for one in report.states for name in one.missing)),
        notes=(*(note for one in report.states for note in one.notes), *told, *clashes),
    )
    if matrix is None:
        return machine.with_notes(*_doubts(report), *_status_notes(machine))
    legend = dict(pair for line in text.within(matrix.line) for pair in _LEGEND.findall(line))
    return replace(
        machine,
        nics=tuple(replace(nic, device=legend.get(nic.name, "")) for nic in matrix.nics),
        nvlink=matrix.nvlink,
        pcie=_pcie(report, matrix),
        gpu_nic=matrix.gpu_nic,
        missing=matrix.missing,
        notes=(*matrix.notes, *machine.notes, *_status_notes(machine)),
    )


def _pcie(report: _Report, matrix: Matrix) -> tuple[PciPath, ...]:
    """Return the PCIe levels, those behind NVLinks too where ``topo -mp`` states them."""
    stated = {(path.low, path.high) for path in matrix.pcie}
    more = report.pci_only.pcie if report.pci_only else ()
    return (*matrix.pcie, *(path for path in more if (path.low, path.high) not in stated))


def _kinds(report: _Report) -> str:
    kinds = []
    if report.matrix:
        kinds.append("nvidia-smi topo -m")
    if report.states:
        kinds.append("nvidia-smi topo -p2p")
    if any(listing.status for listing in report.listings):
        kinds.append("nvidia-smi nvlink -s")
    return " + ".join(kinds or ["nvidia-smi -L"])


def _status(report: _Report) -> tuple[dict[str, LinkStatus], list[str]]:
    """Return each GPU's link status, and notes on what does not go together."""
    status: dict[str, LinkStatus] = {}
    for listing in report.listings:
        for one in listing.status:
            status.setdefault(one.gpu, one)
    listed = [name for listing in report.listings for name in listing.names]
    strange = [name for name in dict.fromkeys(listed) if name not in report.names]
    notes = [f"{words.spans(strange)}: listed, but not in the matrix"] if strange else []
    return status, notes


def _gpus(report: _Report, status: dict[str, LinkStatus]) -> Iterator[Gpu]:
    """Yield the GPUs with what the lists tell of them."""
    first = report.matrix or next(iter(report.states), None)
    of_matrix = {gpu.name: gpu for gpu in first.gpus} if first else {}
    models: dict[str, str] = {}
    uuids: dict[str, str] = {}
    for listing in report.listings:
        models.update({name: model for name, model in listing.models.items() if model})
        uuids.update(listing.uuids)
    for name in report.names:
        said = status.get(name)
        is_whole = said is not None and not said.is_cut
        yield replace(
            of_matrix.get(name, Gpu(name)),
            model=models.get(name, ""),
            uuid=uuids.get(name, ""),
            lanes=said.active if said and is_whole else None,
            lane_gb_per_s=said.gb_per_s if said and is_whole else None,
        )


def _states(report: _Report, text: _Text) -> tuple[tuple[tuple[int, int, str], ...], list[str]]:
    """Return the worst state of each pair, of the matrices that tell of peer access."""
    asked = [(matrix, _capability(matrix, text)) for matrix in report.states]
    peers = [one for one in asked if not one[1] or set(one[1]) & set(_PEER_CAPABILITIES)]
    notes = []
    if len(peers) < len(asked):
        others = "".join(
            sorted({capability for one, capability in asked if (one, capability) not in peers})
        )
        what = "left out" if peers else "the only ones here"
        notes.append(f"topo -p2p {others}: not about peer access in general; {what}")
    names = report.names
    worst: dict[tuple[int, int], str] = {}
    for matrix, _ in peers or asked:
        at = [names.index(gpu.name) for gpu in matrix.gpus]
        for (low, high), state in matrix.states.items():
            pair = (min(at[low], at[high]), max(at[low], at[high]))
            worst[pair] = max(worst.get(pair, state), state, key=words.P2P_STATES.index)
    return tuple((low, high, state) for (low, high), state in sorted(worst.items())), notes


def _capability(matrix: Matrix, text: _Text) -> str:
    for line in text.before(matrix.line):
        found = _CAPABILITY.findall(line)
        if found:
            return str(found[-1])
    return ""


def _doubts(report: _Report) -> Iterator[str]:
    """Say what a report without a matrix does not tell."""
    if report.states:
        yield "topo -p2p does not tell how GPUs are joined; add nvidia-smi topo -m"
    elif any(listing.status for listing in report.listings):
        yield "nvlink -s does not name peers; pair edges are unknown"
    else:
        yield "a list of GPUs does not tell how they are joined; add nvidia-smi topo -m"


def _status_notes(machine: Machine) -> Iterator[str]:
    for status in machine.status:
        if status.gpu == UNKNOWN:
            yield "links are listed without the GPU that they belong to"
        if status.is_cut:
            yield f"{status.gpu}: the list of its links is cut after {status.active}"
        elif status.inactive:
            total = status.active + status.inactive
            yield f"{status.gpu}: {status.inactive} of {total} NVLinks inactive"
