"""How the output of many ranks becomes one stream; values in, values out."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

TAIL_LINES = 20
TAIL_COLUMNS = 500
_LINE_END = re.compile(rb"\r?\n|\r")


def prefixed(rank: int, chunk: bytes) -> bytes:
    r"""Return the lines of `chunk`, each with ``[rank]`` in front and a newline behind.

    Every way to end a line counts, a carriage return too (progress bars: each state becomes a
    line). What is between is passed byte for byte. Output of a rank is forwarded in whole lines,
    so a chunk that has no end is a rank's last line or a piece of a line longer than 64 KiB.

    >>> prefixed(1, b"one\ntwo\r\n")
    b'[1] one\n[1] two\n'
    """
    if not chunk:
        return b""
    lines = _LINE_END.split(chunk)
    if not lines[-1]:
        lines.pop()
    mark = b"[%d] " % rank
    return mark + (b"\n" + mark).join(lines) + b"\n"


def plain(chunk: bytes, *, alone: bool) -> bytes:
    """Return `chunk` for a stream without prefixes.

    Output of the only rank is passed as it is (it may be binary); with more ranks a last line
    without an end gets one, because another rank's line may follow.
    """
    if alone or not chunk or chunk.endswith((b"\n", b"\r")):
        return chunk
    return chunk + b"\n"


class Tail:
    """The last lines of one rank."""

    def __init__(self, num_lines: int = TAIL_LINES) -> None:
        self._lines: deque[bytes] = deque(maxlen=num_lines)

    def add(self, chunk: bytes) -> None:
        """Take note of `chunk`; only its end costs anything."""
        limit = self._lines.maxlen or 1
        lines = _LINE_END.split(chunk[-limit * TAIL_COLUMNS :])
        if not lines[-1]:
            lines.pop()
        self._lines.extend(line[:TAIL_COLUMNS] for line in lines[-limit:])

    def lines(self) -> tuple[str, ...]:
        """Return the lines as text, without empty ones at either end."""
        texts = [line.decode(errors="replace").rstrip() for line in self._lines]
        return tuple(_trimmed(texts))


def _trimmed(lines: Iterable[str]) -> list[str]:
    result = list(lines)
    while result and not result[-1]:
        result.pop()
    while result and not result[0]:
        result.pop(0)
    return result
