"""CPU and NUMA affinity of GPUs: the columns behind a matrix, in all generations of its header.

These cells are the first to be damaged: empty ones shift their neighbours, long ones run into the
next (``0-45,92-1370`` is CPUs 0-45,92-137 and NUMA node 0). What cannot be told is left unstated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from blinkrun.topology.nvidia_words import UNSTATED, in_rows, is_value

CPU, NUMA, GPU_NUMA = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"

_KINDS = re.compile(
    r"(?P<gpu>gpu[ _-]?numa[ _-]?id|gpu[ _-]numa)"
    r"|(?P<cpu>cpu(?:[ _-]?affinity)?)"
    r"|(?P<numa>numa(?:[ _-]?(?:affinity|node))?)"
    r"|(?P<other>[^ ]+)"
)
_CPU_LIST = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
_MAX_CPU = 1 << 16

_Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Affinity:
    """What the affinity columns say of a GPU: its CPUs as printed, its NUMA node if it is one."""

    cpus: str = ""
    numa: int | None = None


@dataclass(frozen=True, slots=True)
class _Cut:
    """A value parted into CPUs, their ranges, and a NUMA node."""

    cpus: str
    numa: int
    ranges: _Ranges


def column_kinds(headings: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that the header's words name.

    >>> column_kinds(["CPU", "Affinity", "NUMA", "Affinity", "GPU", "NUMA", "ID"])
    ('CPU Affinity', 'NUMA Affinity', 'GPU NUMA ID')
    >>> column_kinds(["NUMA", "Slot"])
    ('NUMA Affinity', 'slot')
    """
    kinds = []
    for match in _KINDS.finditer(" ".join(headings).lower()):
        named = {"gpu": GPU_NUMA, "cpu": CPU, "numa": NUMA}
        kinds.append(named.get(match.lastgroup or "", match[0]))
    return tuple(kinds)


def read_affinities(
    headings: Sequence[str], rows: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Affinity], tuple[str, ...]]:
    """Return the affinity of each row, and what had to be repaired.

    Parameters
    ----------
    headings : sequence of str
        The header's words behind the devices.
    rows : mapping of str to sequence of str
        For each GPU the words behind its cells.

    Returns
    -------
    tuple of (dict of str to Affinity, tuple of str)
        The affinities, and a note for each value that ran together with its neighbour.

    Examples
    --------
    >>> rows = {"GPU0": ["0-45,92-1370"], "GPU1": ["46-91,138-183", "1"]}
    >>> found, notes = read_affinities(["CPU", "Affinity", "NUMA", "Affinity"], rows)
    >>> found["GPU0"]
    Affinity(cpus='0-45,92-137', numa=0)
    >>> notes
    ("row GPU0: '0-45,92-1370' read as CPUs 0-45,92-137, NUMA node 0",)
    """
    kinds = column_kinds(headings)
    values = {name: _values(words, kinds) for name, words in rows.items()}
    listed = [_cpu_list(row[0]) for row in values.values() if row and len(row) == len(kinds)]
    fused = [row[0] for row in values.values() if _is_short(row, kinds)]
    found: dict[str, Affinity] = {}
    mended: dict[str, list[str]] = {}
    for name, row in values.items():
        cut = _unfused(row[0], listed, fused) if _is_short(row, kinds) else None
        found[name] = Affinity(cut.cpus, cut.numa) if cut else _affinity(row, kinds)
        if cut:
            what = f"{row[0]!r} read as CPUs {cut.cpus}, NUMA node {cut.numa}"
            mended.setdefault(what, []).append(name)
    return found, tuple(f"{in_rows(names)}: {what}" for what, names in mended.items())


def _values(words: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Return the values of a row, one per column where that can be told."""
    values: list[str] = []
    for word in words:
        if not is_value(word):
            break
        values.append(word)
    surplus = len(values) - len(kinds)
    if surplus > 0 and kinds[:1] == (CPU,) and UNSTATED not in values[: surplus + 1]:
        values[: surplus + 1] = [",".join(values[: surplus + 1])]  # 0-31, 64-95 with a blank inside
    return values


def _is_short(row: Sequence[str], kinds: Sequence[str]) -> bool:
    return bool(row) and len(row) < len(kinds) and kinds[:2] == (CPU, NUMA)


def _affinity(row: Sequence[str], kinds: Sequence[str]) -> Affinity:
    """Return what a row states if nothing in it ran together."""
    if not kinds:
        is_list = bool(row) and ("-" in row[0] or "," in row[0])
        kinds = (CPU, NUMA) if is_list else ()
    elif len(row) < len(kinds):
        kinds = [kind for kind in kinds if kind == CPU]  # an empty cell: who knows which
    stated = dict(zip(kinds, row, strict=False))
    cpus, numa = stated.get(CPU, ""), stated.get(NUMA, "")
    return Affinity(
        cpus=cpus if _CPU_LIST.fullmatch(cpus) else "",
        numa=int(numa) if numa.isascii() and numa.isdigit() and len(numa) < 5 else None,
    )


@lru_cache(maxsize=2048)
def _cpu_list(value: str) -> _Ranges:
    """Return the ranges of a list of CPUs, or nothing if they do not go up."""
    if not _CPU_LIST.fullmatch(value) or len(value) > 1000:
        return ()
    ranges = []
    for part in value.split(","):
        first, _, last = part.partition("-")
        ranges.append((int(first[:9]), int((last or first)[:9])))
    ends = [end for pair in ranges for end in pair]
    rises = all(a <= b for a, b in ranges) and all(
        ranges[k][1] < ranges[k + 1][0] for k in range(len(ranges) - 1)
    )
    return tuple(ranges) if rises and max(ends) < _MAX_CPU else ()


@lru_cache(maxsize=2048)
def _cuts(value: str) -> tuple[_Cut, ...]:
    """Return the ways to part a list of CPUs from the NUMA node that ran into it."""
    cuts = []
    for digits in (1, 2):
        cpus, numa = value[:-digits].rstrip(","), value[-digits:]
        ranges = _cpu_list(cpus)
        if ranges and numa.isdigit() and numa == str(int(numa)):
            cuts.append(_Cut(cpus, int(numa), ranges))
    return tuple(cuts)


def _unfused(value: str, others: Sequence[_Ranges], fused: Sequence[str]) -> _Cut | None:
    """Return CPUs and NUMA node of a value that has both, None where that cannot be told.

    The right place to cut is where the last range ends just before the range of another GPU
    begins, where a GPU's ranges become as long as one another, or where it gets as many CPUs as
    another GPU. Failing that, a socket has a multiple of 8 CPUs, and the only one is node 0.
    """
    cuts, whole = _cuts(value), _cpu_list(value)
    if whole in others:
        return None
    if not whole and (len(cuts) == 1 or "," in value[-3:]):
        return next(iter(cuts), None)
    of_others = [*others, *(cut.ranges for v in fused if v != value for cut in _cuts(v))]
    for cut in cuts:
        if _speaks_for(cut.ranges, of_others):
            return cut
    is_odd = bool(whole and cuts) and _count(whole) % 2 == 1
    return cuts[0] if is_odd and cuts[0].numa == 0 and _count(cuts[0].ranges) % 8 == 0 else None


def _speaks_for(ranges: _Ranges, others: Sequence[_Ranges]) -> bool:
    """Whether something says that a GPU has these CPUs and no others."""
    sizes = {last - first for first, last in ranges}
    starts = {first for listed in others for first, _ in listed}
    return (
        ranges[-1][1] + 1 in starts
        or (len(ranges) > 1 and len(sizes) == 1)
        or _count(ranges) in map(_count, others)
    )


def _count(ranges: _Ranges) -> int:
    return sum(last - first + 1 for first, last in ranges)
