"""Tags that logs, launchers and listings put before each line: rank, host, time, line number.

They are taken off where neighbouring lines have the same kind of tag, so that what is alone on a
line of its own (``NIC0: mlx5_0``) keeps it. Lines of several ranks or hosts that came out mixed are
put in order, rank by rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from blinkrun.topology.paste import Line

# [rank0]: and [1,0]<stdout>:, (worker pid=7), times, levels, host: - but not GPU0: or NIC0:.
_WHO = (
    r"\[[^\[\]\n]{1,60}\](?:<\w{1,10}>)?:?|\([^()\n]{1,60}\)"
    r"|(?!(?:GPU|NIC|mlx)\w*:)[A-Za-z][\w.@-]{0,60}:(?!\S)"
)
_WHEN = (
    r"\d{4}[-/]\d\d[-/]\d\d(?:T\S{1,40})?|\d\d:\d\d:\d\d[\d.,]{0,12}Z?:?"
    r"|(?:INFO|DEBUG|WARNING|ERROR)\b:?"
)
_TAGS = re.compile(rf"\s*(?:(?:{_WHEN}|{_WHO})(?:\s|(?<=:)|(?<=\]))\s*){{1,6}}")
_TIME = re.compile(_WHEN)
_NUMBER = re.compile(r"\s*(\d{1,6})(?:[:|)]\s?|\s+)(?=\S)")
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class _Tagged:
    """A line parted from the tag before it.

    `kind` is the same for lines of one log, `who` for those of one rank or host in it. A blank line
    goes with the line above, as does the rest of a line that was broken up.
    """

    line: Line
    tag: str
    kind: str
    who: str

    @property
    def bare(self) -> Line:
        return Line(self.line.number, self.line.text[len(self.tag) :])


def untagged(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Return the lines without tags, those of one rank together.

    Examples
    --------
    >>> lines = [Line(1, "[rank1]: b"), Line(2, "[rank0]: a"), Line(3, "[rank1]: c")]
    >>> [line.text for line in untagged(lines)]
    ['b', 'c', 'a']
    >>> [line.text for line in untagged([Line(1, "NIC0: mlx5_0"), Line(2, "NIC1: mlx5_1")])]
    ['NIC0: mlx5_0', 'NIC1: mlx5_1']
    """
    return tuple(_unnumbered([line for block in _blocks(lines) for line in block]))


def _blocks(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """Yield runs of lines with one kind of tag, without it."""
    for kind, group in groupby(_tagged(lines), key=lambda one: one.kind):
        block = list(group)
        if not kind or sum(bool(one.tag) for one in block) < _FEWEST:
            yield [one.line for one in block]
        else:
            first = {who: at for at, who in reversed(list(enumerate(one.who for one in block)))}
            yield [one.bare for one in sorted(block, key=lambda one: first[one.who])]


def _tagged(lines: Sequence[Line]) -> Iterator[_Tagged]:
    kind = who = ""
    number = 0
    for line in lines:
        tag = ""
        is_rest, number = line.number == number, line.number
        if not is_rest and line.text and not line.text.isspace():
            match = _TAGS.match(line.text)
            tag = match[0] if match else ""
            kind = re.sub(r"\d+", "0", " ".join(tag.split()))
            who = " ".join(_TIME.sub("", tag).split())
        yield _Tagged(line, tag, kind, who)


def _unnumbered(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield the lines without numbers that count them: each one more than the one before."""
    numbers = [_number(line) for line in lines]
    for at, line in enumerate(lines):
        number = numbers[at]
        before = numbers[at - 1] if at else None
        after = numbers[at + 1] if at + 1 < len(lines) else None
        counts = number is not None and (before == number - 1 or after == number + 1)
        match = _NUMBER.match(line.text) if counts else None
        yield Line(line.number, line.text[match.end() :]) if match else line


def _number(line: Line) -> int | None:
    match = _NUMBER.match(line.text)
    return int(match[1]) if match else None
