"""JSON objects read entry by entry, so that a wrong or cut one is told by its line.

The standard reader gives all or nothing and forgets where a value stood. Here the entries of the
outermost object are read one after the other, each whole or not at all.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_BLANKS = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of the outermost object, its value, and the line where the key stands (from 1)."""

    key: str
    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class Break:
    """Where the text stops being JSON, and what was wrong there."""

    line: int
    problem: str


def read_entries(text: str) -> tuple[tuple[Entry, ...], Break | None]:
    r"""Return the whole entries of a JSON object, and where the text breaks if it does.

    >>> read_entries('{"a": 1,\n "b": [2, 3')
    ((Entry(key='a', value=1, line=1),), Break(line=2, problem="Expecting ',' delimiter"))
    """
    entries: list[Entry] = []
    at = 0
    try:
        at = _expect(text, 0, "{")
        closed = text.startswith("}", at)
        while not closed:
            key, after = _value(text, at)
            if not isinstance(key, str):
                raise json.JSONDecodeError("Expecting a key in double quotes", text, at)
            value, end = _value(text, _expect(text, after, ":"))
            entries.append(Entry(key, value, _line(text, at)))
            closed = text.startswith("}", end)
            at = end if closed else _expect(text, end, ",")
        _expect_end(text, at + 1)
    except json.JSONDecodeError as err:
        return tuple(entries), Break(_line(text, err.pos), err.msg)
    except RecursionError:
        return tuple(entries), Break(_line(text, at), "nested too deeply")
    except ValueError:  # the only other one: a number of thousands of digits
        return tuple(entries), Break(_line(text, at), "a number is too long")
    return tuple(entries), None


def _expect(text: str, at: int, sign: str) -> int:
    """Return where the next thing after `sign` begins."""
    at = _skip(text, at)
    if not text.startswith(sign, at):
        raise json.JSONDecodeError(f"Expecting '{sign}' delimiter", text, at)
    return _skip(text, at + 1)


def _expect_end(text: str, at: int) -> None:
    at = _skip(text, at)
    if at != len(text):
        raise json.JSONDecodeError("Extra data after the object", text, at)


def _value(text: str, at: int) -> tuple[Any, int]:
    """Return a value and where the next thing after it begins."""
    value, end = _DECODER.raw_decode(text, at)
    return value, _skip(text, end)


def _skip(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    return blanks.end() if blanks else at


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
