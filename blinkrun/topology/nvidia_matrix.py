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
from blinkrun.topology.nvidia_affinity import read_affinities
from blinkrun.topology.nvidia_grid import Grid
from blinkrun.topology.nvidia_tables import Table

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
    grid = Grid.of(table, source)
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


def _missing_rows(grid: Grid, table: Table) -> Iterator[tuple[int, str]]:
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


def _disagreements(grid: Grid) -> Iterator[tuple[int, str]]:
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


def _matrix(grid: Grid, table: Table, problems: Sequence[str]) -> Matrix:
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


def _stated(grid: Grid) -> dict[tuple[int, int], str]:
    """Return what is stated of each pair of GPUs, in either triangle."""
    stated = {}
    for low, high, first, second in _pairs(grid.gpus):
        one, two = grid.stated(first, second), grid.stated(second, first)
        if words.is_state(one) and words.is_state(two):
            stated[low, high] = max(one, two, key=words.P2P_STATES.index)
        elif (one or two) and (grid.is_p2p or not _differ(one, two)):
            stated[low, high] = one or two
    return stated


def _unstated(grid: Grid, stated: Mapping[tuple[int, int], str]) -> Iterator[str]:
    """Say for which pairs whole rows have nothing but ``N/A``."""
    pairs = [
        f"{first}-{second}"
        for low, high, first, second in _pairs(grid.gpus)
        if (low, high) not in stated and {first, second} <= grid.whole
    ]
    if pairs:
        more = ", …" if len(pairs) > 3 else ""
        yield f"nothing is stated of {', '.join(pairs[:3])}{more}"


def _nic_paths(grid: Grid) -> tuple[tuple[NicPath, ...], tuple[str, ...]]:
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
