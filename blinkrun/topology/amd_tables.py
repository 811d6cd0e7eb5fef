"""Tables of AMD's tools: a title, a header of GPUs, and a row for each of them.

``rocm-smi`` prints a banner such as ``=== Weight between two GPUs ===`` and calls the GPUs GPU0,
GPU1, …; ``amd-smi`` prints ``WEIGHT TABLE:`` and calls them by their bus ids. Both leave the same
tables, so one reader takes both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from blinkrun.topology.complaints import Complaints
from blinkrun.topology.paste import Line, clean_lines

_TITLE = re.compile(
    r"\b(?P<rocm>weight|hops|link\s+type|link\s+accessibility)\s+between\s+two\s+GPUs"
    r"|\b(?P<amd>weight|hops|link\s+type|access)\s+table\b",
    re.IGNORECASE,
)
_END = re.compile(
    r"\bbetween\s+two\b|\btable\s*:|\bnuma\s+nodes\b|\bend of rocm|\blegend\b|={8,}", re.I
)
_NUMA = re.compile(r"GPU\[?(\d{1,4})\]?\W+\(Topology\)\s*Numa\s+Node\s*:\s*(-?\d{1,4})\b", re.I)
_LABEL = re.compile(
    r"GPU\d{1,4}|(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE
)


class Kind(StrEnum):
    """What the cells of a table tell."""

    WEIGHT = "weight"
    HOPS = "hops"
    TYPE = "link type"
    ACCESS = "access"


@dataclass(slots=True)
class AmdTable:
    """A table as it stands: its kind and line, the GPUs of its header, cells by row."""

    kind: Kind
    line: int
    columns: list[str] = field(default_factory=list)
    rows: dict[str, tuple[int, list[str]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cell:
    """A word of a table and its line."""

    word: str
    line: int


@dataclass(slots=True)
class AmdReport:
    """What one run of a tool says.

    Attributes
    ----------
    names : list of str
        The GPUs as the report calls them.
    cells : dict
        By kind, then by the indices of row and column.
    numa : dict
        NUMA node by the number in a GPU's name.
    missing : list of str
        Rows that are not there, or not whole.
    """

    names: list[str]
    cells: dict[Kind, dict[tuple[int, int], Cell]] = field(default_factory=dict)
    numa: dict[int, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def is_amd_text(text: str) -> bool:
    """Whether there is a table of AMD's tools in a text."""
    return _TITLE.search(text) is not None


def is_amd_smi_text(text: str) -> bool:
    """Whether the first such table is of ``amd-smi``, not of ``rocm-smi``."""
    title = _TITLE.search(text)
    return title is not None and title["amd"] is not None


def report_texts(text: str, source: str) -> tuple[str, ...]:
    """Return each report of a text, with the lines before it left blank.

    A title that comes again begins the next report.

    Raises
    ------
    ReportError
        If the text is longer than any report.
    """
    begins = [1]
    seen: set[Kind] = set()
    for line in clean_lines(text, source):
        kind = _kind(line.text)
        if kind in seen and line.number > begins[-1]:
            begins.append(line.number)
            seen = set()
        if kind:
            seen.add(kind)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    ends = [*begins[1:], len(lines) + 1]
    return tuple(
        "\n" * (begin - 1) + "\n".join(lines[begin - 1 : end - 1])
        for begin, end in zip(begins, ends, strict=True)
    )


def read_tables(lines: Iterable[Line], complaints: Complaints) -> AmdReport:
    """Return what the tables of one report say.

    Raises
    ------
    ReportError
        If a row is missing, too short or too long, unless the read is partial.
    """
    tables, numa = _scan(lines)
    headers = [table.columns for table in tables if _is_distinct(table.columns)]
    report = AmdReport(max(headers, key=len, default=[]), numa=numa)
    for table in tables:
        _take(table, report, complaints)
    return report


def _kind(text: str) -> Kind | None:
    title = _TITLE.search(text)
    if title is None:
        return None
    words = " ".join((title["rocm"] or title["amd"]).lower().split())
    return Kind.ACCESS if words.startswith(("link acc", "access")) else Kind(words)


def _scan(lines: Iterable[Line]) -> tuple[list[AmdTable], dict[int, int]]:
    """Return the tables as they stand, and the NUMA nodes."""
    tables: list[AmdTable] = []
    numa: dict[int, int] = {}
    current: AmdTable | None = None
    for line in lines:
        kind = _kind(line.text)
        place = _NUMA.search(line.text)
        if kind:
            current = AmdTable(kind, line.number)
            tables.append(current)
        elif place:
            numa[int(place[1])] = int(place[2])
        elif _END.search(line.text):
            current = None
        elif current:
            _add_words(current, line)
    return tables, numa


def _add_words(table: AmdTable, line: Line) -> None:
    """Take a line into a table: its header, a row, or the rest of one that was wrapped."""
    words = line.text.split()
    first = next((at for at, word in enumerate(words) if _LABEL.fullmatch(word)), len(words))
    if first == len(words):
        last = next(reversed(table.rows.values()), None)
        if last and 0 < len(words) <= len(table.columns) - len(last[1]):
            last[1].extend(words)
        return
    names = [word.lower() if ":" in word else word.upper() for word in words[first:]]
    is_header = all(_LABEL.fullmatch(word) for word in names)
    if is_header and not table.rows and not set(names) & set(table.columns):
        table.columns += names
    else:
        table.rows.setdefault(names[0], (line.number, words[first + 1 :]))


def _take(table: AmdTable, report: AmdReport, complaints: Complaints) -> None:
    """Take the whole rows of a table, and complain about the others."""
    at = {name: index for index, name in enumerate(report.names)}
    columns = table.columns
    if not columns or not _is_distinct(columns) or not set(columns) <= set(at):
        problem = f"the {table.kind} table has no header that names each GPU once"
        complaints.add(table.line, f"{problem}; expected {' '.join(report.names) or 'GPU0 GPU1 …'}")
        return
    cells = report.cells.setdefault(table.kind, {})
    for name in columns:
        line, words = table.rows.get(name, (table.line, []))
        if len(words) == len(columns):
            for column, word in zip(columns, words, strict=True):
                cells[at[name], at[column]] = Cell(word.upper(), line)
            continue
        where = f"row {name} of the {table.kind} table"
        has = f"has {len(words)} cells" if name in table.rows else "is missing"
        complaints.add(line, f"{where} {has}; expected {len(columns)} cells")
        if name not in report.missing:
            report.missing.append(name)
    for name, (line, _) in table.rows.items():
        if name not in columns:
            complaints.add(line, f"row {name} of the {table.kind} table is not in its header")


def _is_distinct(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)
