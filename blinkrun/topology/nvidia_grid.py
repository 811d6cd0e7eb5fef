"""Cells of a matrix of nvidia-smi: which word of a row stands in which column.

The header's order of names and the row's order of cells are put together here. A row tells by its
``X`` whether it can be trusted: one that has lost a cell has it in the wrong column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blinkrun.errors import ReportError
from blinkrun.topology import nvidia_words as words
from blinkrun.topology.nvidia_affinity import column_kinds
from blinkrun.topology.nvidia_tables import Row, Table

MAX_GPUS = 256

_EXPECTED = "expected X, NV#, PIX, PXB, PHB, NODE, SYS or SOC"
_EXPECTED_STATE = "expected X, OK, CNS, GNS, TNS, NS, DR or U"


@dataclass(slots=True)
class Grid:
    """Rows of a matrix, cell by cell.

    Attributes
    ----------
    columns : tuple of str
        The devices in the header's order.
    is_p2p : bool
        Whether the cells are states of ``topo -p2p``.
    cells : dict of str to dict of str to str
        By row and column, for rows that can be trusted.
    values : dict of str to tuple of str
        What stands behind the cells of those rows.
    lines : dict of str to int
        Where each row stands.
    whole : set of str
        Rows without any fault.
    problems : list of (int, str)
        Faults of rows of GPUs, with their lines.
    notes : list of str
        What was odd about the header.
    """

    columns: tuple[str, ...]
    is_p2p: bool
    notes: list[str]
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    problems: list[tuple[int, str]] = field(default_factory=list)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs among the columns."""
        return tuple(name for name in self.columns if words.is_gpu(name))

    @property
    def nics(self) -> tuple[str, ...]:
        """The other columns."""
        return tuple(name for name in self.columns if not words.is_gpu(name))

    @classmethod
    def of(cls, table: Table, source: str) -> Grid:
        """Return the grid of a table; rows that cannot be placed become problems."""
        columns, notes = _columns(table, source)
        grid = cls(columns, _is_p2p(table, len(columns)), notes)
        rows = {row.label: row for row in reversed(table.rows)}
        for row in table.rows:
            if rows[row.label] is not row:
                text = f"row {row.label} stands here and, otherwise, in line {rows[row.label].line}"
                grid.problems.append((row.line, text))
            elif row.label in columns:
                grid.add(row, rows)
            elif words.is_gpu(row.label):
                text = f"row {row.label} has no column, expected one of {words.spans(grid.gpus)}"
                grid.problems.append((row.line, text))
        return grid

    def add(self, row: Row, rows: Mapping[str, Row]) -> None:
        """Take a row's cells if they can be trusted."""
        found = _unfused(row, self.columns, rows)
        run = _run(found)
        cells = dict(zip(self.columns, map(_canonical, run), strict=False))
        self.lines[row.label] = row.line
        fault = self._fault(row.label, cells, found)
        if fault and words.is_gpu(row.label):
            self.problems.append((row.line, fault))
        if not fault:
            self.whole.add(row.label)
        if not fault or (words.is_gpu(row.label) and cells.get(row.label) == words.SELF):
            is_full = len(run) >= len(self.columns)
            self.cells[row.label] = cells
            self.values[row.label] = tuple(found[len(run) :]) if is_full else ()

    def _fault(self, label: str, cells: Mapping[str, str], found: Sequence[str]) -> str:
        """Return what is wrong with a row's cells, or nothing."""
        gpus, is_gpu = self.gpus, words.is_gpu(label)
        have = sum(name in cells for name in gpus)
        if is_gpu and have < len(gpus):
            odd = found[len(cells)] if len(cells) < len(found) else "0"
            if words.is_value(odd):
                return f"row {label} has {have} of {len(gpus)} GPU cells"
            return self._unknown(label, odd[:40], self.columns[len(cells)])
        selves = [name for name, cell in cells.items() if cell == words.SELF]
        if cells.get(label) == "-":
            selves = [label]
        if selves != [label] and (is_gpu or selves):
            where = f"its X under {words.spans(selves)}" if selves else "no X"
            return f"row {label} has {where}, expected it under {label}"
        wrong = [name for name in gpus if name in cells and not self._fits(cells[name])]
        return self._unknown(label, cells[wrong[0]], wrong[0]) if wrong else ""

    def _unknown(self, label: str, cell: str, column: str) -> str:
        expected = _EXPECTED_STATE if self.is_p2p else _EXPECTED
        return f"row {label} has {cell!r} under {column}, {expected}"

    def _fits(self, cell: str) -> bool:
        return not words.is_link(cell) or cell == words.SELF or words.is_state(cell) == self.is_p2p

    def stated(self, row: str, column: str) -> str:
        """Return what the matrix says of a row's device and a column's, or nothing."""
        cell = self.cells.get(row, {}).get(column, "")
        return cell if words.is_link(cell) and self._fits(cell) else ""


def _columns(table: Table, source: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the names of a matrix's columns, and notes if the header does not tell them."""
    labels = tuple(dict.fromkeys(row.label for row in table.rows))
    lengths = sorted(len(_run(row.words)) for row in table.rows) or [0]
    columns, longest, notes = table.columns, lengths[-1], []
    more = tuple(name for name in labels if name not in columns)
    if more and len(columns) + len(more) <= lengths[len(lengths) // 2]:
        what = f"the header lacks {words.spans(more)}" if columns else "there is no header"
        notes.append(f"{what}: columns are taken to be in the order of the rows")
        columns = (*columns, *more)
    columns = columns or labels
    if longest > len(columns) + len(column_kinds(table.headings)):
        notes.append("rows have more cells than the header has names; those are left out")
    # Words of a header that no cell answers to are no devices.
    while len(columns) > longest and not (words.is_device(columns[-1]) or columns[-1] in labels):
        columns = columns[:-1]
    num_gpus = sum(map(words.is_gpu, columns))
    if num_gpus > MAX_GPUS:
        problem = f"a matrix of {num_gpus} GPUs, expected at most {MAX_GPUS}"
        raise ReportError(source, table.line, problem)
    return columns, notes


def _run(found: Sequence[str]) -> list[str]:
    """Return the cells that a row begins with."""
    run = []
    for word in found:
        if not words.is_cell(word):
            break
        run.append(word)
    return run


def _is_p2p(table: Table, num_columns: int) -> bool:
    cells = [word for row in table.rows for word in _run(row.words)[:num_columns]]
    states = sum(map(words.is_state, cells))
    return 2 * states > sum(words.is_link(cell) and cell != words.SELF for cell in cells)


def _unfused(row: Row, columns: Sequence[str], rows: Mapping[str, Row]) -> tuple[str, ...]:
    """Return a row's words, a count that ran into the affinity parted from it.

    The other triangle tells where: the column's own row begins with the same count.
    """
    found, at = row.words, len(_run(row.words))
    if at == len(columns) and words.is_gpu(columns[-1]):
        at -= 1  # NV10 may be NV1 with a 0 behind it
    if at >= min(len(found), len(columns)):
        return found
    other, own = rows.get(columns[at]), columns.index(row.label)
    mirror = other.words[own] if other is not None and own < len(other.words) else ""
    ways = words.unfuse(found[at])
    right = [way for way in ways if way[0] == mirror != found[at]]
    if not right and words.is_fused(found[at]) and len(ways) == 1:
        right = list(ways)
    return (*found[:at], *right[0], *found[at + 1 :]) if right else found


def _canonical(cell: str) -> str:
    return cell if cell in (words.UNSTATED, "-") else cell.upper()
