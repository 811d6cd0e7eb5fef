"""From shares to elements: where a part lies in a block of a given count, and its chunks.

The native core computes the same with the same whole-number arithmetic (`csrc/program.hpp`).
"""

from __future__ import annotations

from blinkrun.schedule.ir import Part

ALIGN_BYTES = 64  # one cache line: parts of different ranks do not share lines


def part_range(part: Part, shares: int, count: int, itemsize: int) -> tuple[int, int]:
    """Return the elements [lo, hi) of a block of `count` elements that `part` covers.

    Inner boundaries are rounded down to whole cache lines, so parts may be uneven or empty; all
    parts together cover every element exactly once.

    >>> part_range(Part(0, 1), 2, 100, 4), part_range(Part(1, 2), 2, 100, 4)
    ((0, 48), (48, 100))
    """
    return _boundary(part.start, shares, count, itemsize), _boundary(
        part.stop, shares, count, itemsize
    )


def _boundary(share: int, shares: int, count: int, itemsize: int) -> int:
    if share == shares:
        return count
    align = ALIGN_BYTES // itemsize
    return count * share // shares // align * align


def num_chunks(lo: int, hi: int, chunk_elements: int) -> int:
    """Return into how many chunks of `chunk_elements` the range [lo, hi) falls; 0 if empty."""
    return -(-(hi - lo) // chunk_elements)
