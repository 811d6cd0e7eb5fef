"""What a matrix of nvidia-smi states: connections of GPU pairs, or their peer-to-peer states.

A matrix says everything twice, once in each triangle. So what damage a paste has taken shows: a
row that lost a cell has its ``X`` in the wrong column, two rows that disagree tell of each other.
Such a matrix is refused with the place and the reason; a partial read does without those rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from blinkrun.errors import ReportError
from blinkrun.topology import nvidia_words as words
from blinkrun.topology.machine import Gpu, Nic, NicPath, PciPath, Wire
from blinkrun.topology.nvidia_affinity import column_kinds, read_affinities
from blinkrun.topology.nvidia_tables import Row, Table

MAX_GPUS = 256

_EXPECTED = "expected X, NV#, PIX, PXB, PHB, NODE, SYS or SOC"
_EXPECTED_STATE = "expected X, OK, CNS, GNS, TNS, NS, DR or U"
_SAME = {"SOC": "SYS", "PSB": "PIX"}  # older names; a PSB is a switch on the GPUs' own board


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix read: devices by name in the header's order, and what is stated of each pair.

    Attributes
    ----------
    line, last_line : int
        Where it stands.
    gpus, nics : tuple
        With affinities as far as they are stated.
    is_p2p : bool
        Whether it is one of ``topo -p2p``; then `states` has the pairs, else `nvlink`, `pcie`.
    states : mapping of (int, int) to str
        The worse of the two directions.
    missing : tuple of str
        GPUs whose rows are not there, or not whole.
    notes : tuple of str
        What was odd.
    """

    line: int
    last_line: int
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    is_p2p: bool
    nvlink: tuple[Wire, ...]
    pcie: tuple[PciPath, ...]
    gpu_nic: tuple[NicPath, ...]
    states: Mapping[tuple[int, int], str]
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def read_matrix(table: Table, source: str, *, partial: bool = False) -> Matrix:
    """Return what `table` states.

    Parameters
    ----------
    table : Table
        As `find_tables` returns them.
    source : str
        The file's name, for messages.
    partial : bool, default False
        Whether to take what is whole if not all of it is.

    Returns
    -------
    Matrix
        All of it, or with `partial` at least one whole row of it.

    Raises
    ------
    ReportError
        If rows are missing or short, cells cannot be read, or the two triangles disagree; `line`
        is the first such row. Cells of NICs may be missing; that is a note.
    """
    grid = _Grid.of(table, source)
    problems = [*grid.problems, *_missing_rows(grid, table), *_disagreements(grid)]
    if problems and not (partial and grid.cells):
        raise _error(source, problems, can_do_without=bool(grid.cells))
    return _matrix(grid, table, tuple(text for _, text in problems))


def _error(
    source: str, problems: Sequence[tuple[int, str]], *, can_do_without: bool
) -> ReportError:
    """Return the error that names the first two problems and how many more there are."""
    texts = list(dict.fromkeys(text for _, text in problems))
    told, more = texts[:2], len(texts) - 2
    expected = [text.partition(", expected")[2] for text in told]
    if len(told) == 2 and expected[0] == expected[1]:
        told[0] = told[0].partition(", expected")[0]
    text = "; ".join([*told, *([f"and {more} more"] if more > 0 else [])])
    return ReportError(source, problems[0][0], text, partial=can_do_without)


@dataclass(slots=True)
class _Grid:
    """Rows of a matrix, cell by cell: `cells[row][column]`, for rows that can be trusted."""

    columns: tuple[str, ...]
    is_p2p: bool
    cells: dict[str, dict[str, str]]
    values: dict[str, tuple[str, ...]]  # words behind the cells
    lines: dict[str, int]
    whole: set[str]
    problems: list[tuple[int, str]]
    notes: list[str]

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if words.is_gpu(name))

    @property
    def nics(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if not words.is_gpu(name))

    @classmethod
    def of(cls, table: Table, source: str) -> _Grid:
        """Return the grid of a table; rows that cannot be placed become problems."""
        columns, notes = _columns(table, source)
        is_p2p = _is_p2p(table, len(columns))
        grid = cls(columns, is_p2p, {}, {}, {}, set(), [], notes)
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
        values = found[len(run) :] if len(run) >= len(self.columns) else ()
        cells = dict(zip(self.columns, map(_canonical, run), strict=False))
        self.lines[row.label] = row.line
        problem = self._problem(row, cells, found)
        if problem and words.is_gpu(row.label):
            self.problems.append((row.line, problem))
            if cells.get(row.label) != words.SELF:
                return
        elif problem:
            return
        else:
            self.whole.add(row.label)
        self.cells[row.label], self.values[row.label] = cells, tuple(values)

    def _problem(self, row: Row, cells: Mapping[str, str], found: Sequence[str]) -> str:
        """Return what is wrong with a row's cells, or nothing."""
        gpus = self.gpus
        have = sum(name in cells for name in gpus)
        selves = [name for name, cell in cells.items() if cell == words.SELF]
        if row.label in cells and cells[row.label] == "-":
            selves = [row.label]
        if words.is_gpu(row.label) and have < len(gpus):
            odd = found[len(cells)] if len(cells) < len(found) else ""
            if odd and not words.is_value(odd):
                under = self.columns[len(cells)]
                expected = _EXPECTED_STATE if self.is_p2p else _EXPECTED
                return f"row {row.label} has {odd[:40]!r} under {under}, {expected}"
            return f"row {row.label} has {have} of {len(gpus)} GPU cells"
        if selves != [row.label] and (words.is_gpu(row.label) or selves):
            where = f"its X under {words.spans(selves)}" if selves else "no X"
            return f"row {row.label} has {where}, expected it under {row.label}"
        wrong = [name for name in gpus if name in cells and not self._fits(cells[name])]
        if wrong and words.is_gpu(row.label):
            expected = _EXPECTED_STATE if self.is_p2p else _EXPECTED
            return f"row {row.label} has {cells[wrong[0]]!r} under {wrong[0]}, {expected}"
        return ""

    def _fits(self, cell: str) -> bool:
        return not words.is_link(cell) or cell == words.SELF or words.is_state(cell) == self.is_p2p

    def stated(self, row: str, column: str) -> str:
        """Return what the matrix says of a row's device and a column's, or nothing."""
        cell = self.cells.get(row, {}).get(column, "")
        return cell if words.is_link(cell) and self._fits(cell) else ""


def _columns(table: Table, source: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the names of a matrix's columns, and a note if the header does not tell them."""
    labels = tuple(dict.fromkeys(row.label for row in table.rows))
    lengths = sorted(len(_run(row.words)) for row in table.rows) or [0]
    longest = lengths[-1]
    columns = table.columns
    more = tuple(name for name in labels if name not in columns)
    notes = []
    if more and len(columns) + len(more) <= lengths[len(lengths) // 2]:
        what = f"the header lacks {words.spans(more)}" if columns else "there is no header"
        notes.append(f"{what}: columns are taken to be in the order of the rows")
        columns = (*columns, *more)
    columns = columns or labels
    surplus = longest - len(columns) - len(column_kinds(table.headings))
    if surplus > 0:
        notes.append("rows have more cells than the header has names; those are left out")
    # Words of a header that no cell answers to are no devices.
    while columns and len(columns) > longest and columns[-1] not in labels:
        if words.is_device(columns[-1]):
            break
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


def _missing_rows(grid: _Grid, table: Table) -> Iterator[tuple[int, str]]:
    missing = [name for name in grid.gpus if name not in grid.lines]
    if not table.rows:
        text = f"a header of {words.spans(grid.gpus)} without any row, expected one for each GPU"
        yield table.line, text
    elif missing:
        be = "is" if len(missing) == 1 else "are"
        have = len(grid.gpus) - len(missing)
        text = (
            f"{words.in_rows(missing)} {be} missing, expected {len(grid.gpus)} GPU rows, not {have}"
        )
        yield table.last_line, text


def _pairs(gpus: Sequence[str]) -> Iterator[tuple[int, int, str, str]]:
    for low, first in enumerate(gpus):
        for high in range(low + 1, len(gpus)):
            yield low, high, first, gpus[high]


def _differ(one: str, two: str) -> bool:
    return bool(one and two) and _SAME.get(one, one) != _SAME.get(two, two)


def _disagreements(grid: _Grid) -> Iterator[tuple[int, str]]:
    if grid.is_p2p:
        return  # reading may be allowed one way only
    for _, _, first, second in _pairs(grid.gpus):
        one, two = grid.stated(first, second), grid.stated(second, first)
        if _differ(one, two):
            text = (
                f"{first}-{second} is {two} in row {second}, but {one} in row {first} of line "
                f"{grid.lines[first]}; expected the same in both"
            )
            yield grid.lines[second], text


def _matrix(grid: _Grid, table: Table, problems: Sequence[str]) -> Matrix:
    """Return what a grid states, what contradicts itself left out."""
    notes = [*grid.notes, *(f"left out: {text}" for text in problems)]
    values = {name: grid.values.get(name, ()) for name in grid.gpus}
    affinities, mended = read_affinities(table.headings, values)
    gpus = tuple(
        Gpu(name, numa=affinities[name].numa, cpus=affinities[name].cpus) for name in grid.gpus
    )
    stated = _stated(grid)
    unstated = _unstated(grid, stated)
    gpu_nic, without = _nic_paths(grid)
    return Matrix(
        line=table.line,
        last_line=table.last_line,
        gpus=gpus,
        nics=tuple(Nic(name) for name in grid.nics),
        is_p2p=grid.is_p2p,
        nvlink=tuple(
            Wire(low, high, words.lanes(cell))
            for (low, high), cell in stated.items()
            if words.lanes(cell)
        ),
        pcie=tuple(
            PciPath(low, high, "PIX" if cell == "PSB" else cell)
            for (low, high), cell in stated.items()
            if cell in words.LEVELS
        ),
        gpu_nic=gpu_nic,
        states={pair: cell for pair, cell in stated.items() if words.is_state(cell)},
        missing=tuple(name for name in grid.gpus if name not in grid.whole),
        notes=(*notes, *mended, *unstated, *without),
    )


def _stated(grid: _Grid) -> dict[tuple[int, int], str]:
    """Return what is stated of each pair of GPUs, in either triangle."""
    stated = {}
    for low, high, first, second in _pairs(grid.gpus):
        one, two = grid.stated(first, second), grid.stated(second, first)
        if words.is_state(one) and words.is_state(two):
            stated[low, high] = max(one, two, key=words.P2P_STATES.index)
        elif (one or two) and (grid.is_p2p or not _differ(one, two)):
            stated[low, high] = one or two
    return stated


def _unstated(grid: _Grid, stated: Mapping[tuple[int, int], str]) -> Iterator[str]:
    """Say for which pairs whole rows have nothing but ``N/A``."""
    pairs = [
        f"{first}-{second}"
        for low, high, first, second in _pairs(grid.gpus)
        if (low, high) not in stated and {first, second} <= grid.whole
    ]
    if pairs:
        more = ", …" if len(pairs) > 3 else ""
        yield f"nothing is stated of {', '.join(pairs[:3])}{more}"


def _nic_paths(grid: _Grid) -> tuple[tuple[NicPath, ...], tuple[str, ...]]:
    """Return the levels between GPUs and NICs, and a note on rows that lack some.

    A GPU's row counts if it has a cell for every NIC: in a shorter one nobody knows which is gone.
    """
    short = {
        name
        for name in grid.cells
        if words.is_gpu(name) and sum(nic in grid.cells[name] for nic in grid.nics) < len(grid.nics)
    }
    paths, without = [], []
    for gpu, name in enumerate(grid.gpus):
        for at, nic in enumerate(grid.nics):
            cell = grid.stated(nic, name) if name in short else ""
            cell = cell or (grid.stated(name, nic) if name not in short else "")
            cell = cell or grid.stated(nic, name)
            if cell in words.LEVELS:
                paths.append(NicPath(gpu, at, "PIX" if cell == "PSB" else cell))
            elif name in short:
                without.append(name)
    lacking = tuple(dict.fromkeys(without))
    note = f"{words.in_rows(lacking)}: cells of NICs are missing, their paths are left out"
    return tuple(paths), (note,) if lacking else ()
