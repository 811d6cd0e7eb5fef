"""From shares to elements: where a part lies in a block of a given count, and its chunks.

The native core computes the same with the same whole-number arithmetic (`csrc/program.hpp`).
"""

from __future__ import annotations

from dataclasses import dataclass

from blinkrun.schedule.ir import Part

ALIGN_BYTES = 64  # one cache line: parts of different ranks do not share lines
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, odd
_MANY = 4  # chunks; where there are fewer, one more costs more than waiting together


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


@dataclass(frozen=True, slots=True)
class Chunks:
    """A part's elements [lo, hi) and how they fall into chunks.

    All chunks have `chunk_elements`, but for the last, which is what remains, and the first, which
    lacks `skip`. Channels that share a link get equal parts of it; were their chunks equal too,
    all would come through at the same time and then wait at the same time, for a step and a
    latency, while nothing crosses the link. So the first chunks of channels differ.
    """

    lo: int
    hi: int
    chunk_elements: int
    skip: int = 0

    @property
    def num_chunks(self) -> int:
        """How many there are; 0 for an empty part."""
        return -(-(self.hi - self.lo + self.skip) // self.chunk_elements) * (self.hi > self.lo)

    def span(self, number: int) -> tuple[int, int]:
        """Return the elements [start, stop) of a chunk.

        >>> chunks = Chunks(lo=100, hi=150, chunk_elements=20, skip=4)
        >>> [chunks.span(number) for number in range(chunks.num_chunks)]
        [(100, 116), (116, 136), (136, 150)]
        """
        start = self.lo - self.skip + number * self.chunk_elements
        return max(self.lo, start), min(self.hi, start + self.chunk_elements)


def chunks_of(part: Part, shares: int, count: int, itemsize: int, chunk_elements: int) -> Chunks:
    """Return how a part of a block falls into chunks; 0 `chunk_elements`: it is one chunk.

    Parts of at least `_MANY` chunks begin with a shorter one, by a length that the golden ratio
    scatters: parts that follow each other get lengths far apart, however many there are (Knuth,
    The Art of Computer Programming 3, section 6.4, multiplicative hashing).

    >>> [chunks_of(Part(at, at + 1), 4, 40960, 4, 1024).skip for at in range(4)]
    [0, 624, 240, 864]
    """
    lo, hi = part_range(part, shares, count, itemsize)
    if not chunk_elements:
        return Chunks(lo, hi, max(hi - lo, 1))
    if hi - lo < _MANY * chunk_elements:
        return Chunks(lo, hi, chunk_elements)
    scattered = (part.start * _GOLDEN % (1 << 64)) >> 32
    align = ALIGN_BYTES // itemsize
    skip = (scattered * chunk_elements >> 32) // align * align
    return Chunks(lo, hi, chunk_elements, skip)
