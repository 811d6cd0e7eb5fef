"""Where the matrices of nvidia-smi stand in a paste: headers, rows, and what belongs to each.

Nothing is taken from a column's place on the line: tabs get lost, headers shift against their rows,
rows wrap or run together. A header is a run of device names, a row is a device name with a
connection behind it and goes on to the next name; the order of words is all that counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from blinkrun.topology import nvidia_words as words
from blinkrun.topology.nvidia_affinity import column_kinds
from blinkrun.topology.paste import Line

_HINT = re.compile(r"GPU\d")
_ENDS = frozenset({"legend", "nic", "legend:"})  # what may follow the last row on its line
_NAME = re.compile(r"[A-Za-z][\w.:-]*")
_PATIENCE = 200  # lines that belong to nothing, after which a matrix is taken to be over
_MAX_HEADER = 2048
_NEAR = 600  # words; no row is longer
_TERMINAL = 60  # columns


@dataclass(frozen=True, slots=True)
class Row:
    """A row: the device it is of, its line, and the words behind the name, cells first."""

    label: str
    line: int
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A matrix as it stands in the paste.

    Attributes
    ----------
    line, last_line : int
        Where it begins (its header) and where its last row stands.
    columns : tuple of str
        The devices that the header names, in its order; empty where there is no header.
    headings : tuple of str
        Words of the header behind the devices: ``CPU``, ``Affinity``, ….
    rows : tuple of Row
        In the order of the paste. A row that repeats another word by word is left out.
    is_again : bool
        Whether it has no header of its own: rows that follow a whole matrix and name its devices.
    """

    line: int
    last_line: int
    columns: tuple[str, ...]
    headings: tuple[str, ...]
    rows: tuple[Row, ...]
    is_again: bool = False

    @property
    def labels(self) -> frozenset[str]:
        """The devices that have a row."""
        return frozenset(row.label for row in self.rows)

    @property
    def content(self) -> object:
        """What is the same for two tables that say the same."""
        return self.columns, self.headings, tuple((row.label, row.words) for row in self.rows)


def find_tables(lines: Sequence[Line]) -> tuple[Table, ...]:
    r"""Return all matrices of a paste in order, also those with rows missing or without any.

    Examples
    --------
    >>> from blinkrun.topology.paste import clean_lines
    >>> text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-7\nGPU1\tNV2\t X \t0-7"
    >>> (table,) = find_tables(clean_lines(text))
    >>> table.columns, table.headings
    (('GPU0', 'GPU1'), ('CPU', 'Affinity'))
    >>> [(row.label, row.words) for row in table.rows]
    [('GPU0', ('X', 'NV2', '0-7')), ('GPU1', ('NV2', 'X', '0-7'))]
    """
    scanner = _Scanner()
    for at, line in enumerate(lines):
        if scanner.table is None and not _HINT.search(line.text):
            continue
        found = scanner.mended(line, words.split_words(line.text))
        if found and set(found) != {"-"}:
            scanner.feed(line.number, found, _Ahead(lines, at))
    scanner.close()
    return _joined(scanner.tables)


@dataclass(slots=True)
class _Ahead:
    """The first words of the next line that has any; looked up only where a line ends early."""

    lines: Sequence[Line]
    at: int

    def first(self) -> str:
        for line in self.lines[self.at + 1 : self.at + 10]:
            found = words.split_words(line.text[:4096])
            if found:
                return found[0]
        return ""


@dataclass(slots=True)
class _Open:
    """A matrix that is being read; what is looked up for each word is kept in sets."""

    line: int
    columns: list[str] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    last_line: int = 0
    is_again: bool = False
    names: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)
    seen: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)

    def add_column(self, name: str) -> None:
        self.columns.append(name)
        self.names.add(name)

    def add_row(self, row: Row) -> None:
        self.rows.append(row)
        self.labels.add(row.label)
        self.seen.add((row.label, row.words))
        self.last_line = row.line

    def has_all_rows(self) -> bool:
        return bool(self.labels) and all(
            name in self.labels for name in self.columns if words.is_gpu(name)
        )

    def again(self, line: int) -> _Open:
        return _Open(line, self.columns, self.headings, is_again=True, names=self.names)

    def closed(self) -> Table:
        return Table(
            line=self.line,
            last_line=max(self.line, self.last_line),
            columns=tuple(self.columns),
            headings=tuple(self.headings),
            rows=tuple(self.rows),
            is_again=self.is_again,
        )


class _Scanner:
    """Reads words line by line; a header or a row is open until something else begins."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.table: _Open | None = None
        self._in_header = False
        self._header_line = 0
        self._is_list = False  # whether the line has nothing but names
        self._label = ""
        self._row_line = 0
        self._row: list[str] = []
        self._idle = 0
        self._last = Line(0, "")

    def feed(self, number: int, found: tuple[str, ...], ahead: _Ahead) -> None:
        """Read the words of a line."""
        wraps = self._wraps(found)
        self._is_list = all(map(_NAME.fullmatch, found))
        idle = True
        for at, word in enumerate(found):
            after = found[at + 1] if at + 1 < len(found) else ahead.first()
            if self._starts_row(word, after, found, at):
                self._open_row(word, number)
            elif self._starts_header(word, after, found, at):
                self._open_header(word, number)
            elif self._in_header:
                self._extend_header(word, number)
            elif self._label and (number == self._row_line or wraps):
                self._extend_row(word)
            else:
                continue
            idle = False
        self._idle = self._idle + 1 if idle else 0
        if self.table is not None and self._idle > _PATIENCE:
            self.close()

    def mended(self, line: Line, found: tuple[str, ...]) -> tuple[str, ...]:
        """Return a line's words, the first one made whole if the line above broke inside of it."""
        last, self._last = self._last, line
        table, pieces = self.table, self._row if self._label else self._header_words()
        is_broken = (
            pieces
            and found
            and line.number == last.number + 1
            and not (last.text[-1:].isspace() or line.text[:1].isspace())
            and not (self._label and any(map(words.is_device, found)))
        )
        if table is None or not is_broken:
            return found
        is_known = words.is_link if self._label else _is_of_header
        whole, parts = pieces[-1] + found[0], (pieces[-1], found[0])
        # NV1 and a 2 below it: a count, if the line above filled a terminal's width.
        is_count = is_known(parts[0]) and self._label and len(last.text) >= _TERMINAL
        if is_known(whole) and not is_known(parts[1]) and (is_count or not is_known(parts[0])):
            pieces[-1] = whole
            table.names.update(table.columns)
            return found[1:]
        return found

    def _header_words(self) -> list[str]:
        if not self._in_header or self.table is None:
            return []
        return self.table.headings or self.table.columns

    def close(self) -> None:
        """End the matrix that is open."""
        self._close_row()
        table, self.table, self._in_header, self._idle = self.table, None, False, 0
        if table is not None and (table.rows or not self._is_said(table)):
            self.tables.append(table.closed())

    def _is_said(self, table: _Open) -> bool:
        """Whether the matrix before is nothing but the same header."""
        last = self.tables[-1] if self.tables else None
        return last is not None and not last.rows and last.columns == tuple(table.columns)

    def _is_column(self, word: str) -> bool:
        return self.table is not None and word in self.table.names

    def _starts_row(self, word: str, after: str, found: Sequence[str], at: int) -> bool:
        is_column = self._is_column(word)
        is_label = words.is_gpu(word) or is_column
        if not is_label and (self.table is None or not words.is_nic(word)):
            return False
        if words.is_link(after) or words.is_fused(after):
            return after == after.upper() or is_column
        # The first cell may be unreadable; it is a row all the same if others follow.
        is_new = is_column and not (self.table and word in self.table.labels)
        if not is_new or words.is_device(after) or words.is_heading(after):
            return False
        return any(map(words.is_link, found[at + 1 : at + _NEAR]))

    def _starts_header(self, word: str, after: str, found: Sequence[str], at: int) -> bool:
        if self._in_header and self.table is not None:
            return word in self.table.names and words.is_device(after)
        if not words.is_gpu(word):
            return words.is_nic(word) and words.is_gpu(after) and at + 1 < len(found)
        if words.is_device(after) or words.is_heading(after):
            return True
        rest = found[at + 1 : at + _NEAR] if _is_numbered(after) else ()
        return bool(rest) and all(words.is_heading(name) or _is_numbered(name) for name in rest)

    def _open_header(self, word: str, number: int) -> None:
        self.close()
        self.table = _Open(number)
        self.table.add_column(word)
        self._in_header, self._header_line = True, number

    def _extend_header(self, word: str, number: int) -> None:
        table = self.table
        if table is None or len(table.columns) + len(table.headings) > _MAX_HEADER:
            self._in_header = False
        elif words.is_heading(word) or (table.headings and _NAME.fullmatch(word)):
            self._in_header = words.is_heading(word) or number == self._header_line
            table.headings += [word] if self._in_header else []
        elif word in table.names:
            self._in_header = False  # names do not repeat: this is no header's word any more
        elif words.is_device(word) or (_NAME.fullmatch(word) and self._may_name(word, number)):
            table.add_column(word)
            self._header_line = number
        else:
            self._in_header = False

    def _may_name(self, word: str, number: int) -> bool:
        """Whether a device may have such a name: on the header's line, or where that wraps."""
        return number == self._header_line or (self._is_list and _is_numbered(word))

    def _open_row(self, label: str, number: int) -> None:
        self._close_row()
        if self.table is None:
            self.table = _Open(line=number)
        self._in_header = False
        self._label, self._row_line, self._row = label, number, []

    def _extend_row(self, word: str) -> None:
        if word.lower() in _ENDS:
            self._close_row()
        elif len(self._row) < _MAX_HEADER:
            self._row.append(word)

    def _close_row(self) -> None:
        label, self._label = self._label, ""
        if not label or self.table is None:
            return
        row = Row(label, self._row_line, tuple(self._row))
        if (label, row.words) in self.table.seen:
            return
        if label in self.table.labels and self.table.has_all_rows():
            table = self.table.again(row.line)  # one more like it, without a header of its own
            self.close()
            self.table = table
        self.table.add_row(row)

    def _wraps(self, found: tuple[str, ...]) -> bool:
        """Whether a line goes on with the row above: nothing but cells and values up to a name."""
        if not self._label or self.table is None:
            return False
        want = len(self.table.columns) + len(column_kinds(self.table.headings))
        for word in found:
            if words.is_device(word):
                break
            if not (words.is_cell(word) or words.is_value(word) or words.is_fused(word)):
                return False
        return len(self._row) < want or (not want and words.is_cell(found[0]))


def _is_of_header(word: str) -> bool:
    return words.is_device(word) or words.is_heading(word)


def _is_numbered(word: str) -> bool:
    return _NAME.fullmatch(word) is not None and any(map(str.isdigit, word))


def _joined(tables: Sequence[Table]) -> tuple[Table, ...]:
    """Return the tables, those parts joined that repeat a header over the rest of the rows."""
    joined: list[Table] = []
    for table in tables:
        last = joined[-1] if joined else None
        if last and last.columns == table.columns and not last.labels & table.labels:
            rows = (*last.rows, *table.rows)
            headings = last.headings or table.headings
            last_line = max(last.last_line, table.last_line)
            joined[-1] = Table(last.line, last_line, last.columns, headings, rows)
        else:
            joined.append(table)
    return tuple(joined)
