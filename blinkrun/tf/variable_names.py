"""Names of variables, for messages and to see whether ranks have the same ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_NUMBERED = re.compile(r"^(.*?)_(\d+)$")


def names_of(variables: Sequence[Any]) -> tuple[str, ...]:
    """Return a name for each variable or tensor: its path, its name, or its place."""
    return tuple(_name(number, each) for number, each in enumerate(variables))


def _name(number: int, variable: Any) -> str:
    try:
        name = getattr(variable, "path", None) or variable.name
    except (AttributeError, ValueError):  # an eager tensor has none
        name = None
    return str(name).removesuffix(":0") if name else f"source {number}"


@lru_cache(maxsize=64)
def comparable(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names without what depends on how many layers a process has made before.

    Keras numbers layers as they are made: a rank that has built another model has ``dense_2`` where
    others have ``dense``. What counts is their order.

    >>> comparable(("dense_2/kernel", "dense_4/kernel", "out/kernel"))
    ('dense/kernel', 'dense_1/kernel', 'out/kernel')
    """
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    split = [[_split(part) for part in name.split("/")] for name in names]
    for parts in split:
        for base, number in parts:
            numbers[base].add(number)
    place = {base: sorted(found) for base, found in numbers.items()}
    return tuple(
        "/".join(_joined(base, place[base].index(number)) for base, number in parts)
        for parts in split
    )


def _split(part: str) -> tuple[str, int]:
    found = _NUMBERED.match(part)
    return (found[1], int(found[2])) if found else (part, 0)


def _joined(base: str, number: int) -> str:
    return f"{base}_{number}" if number else base
