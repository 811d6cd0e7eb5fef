"""A figure of the paper as a value: rows, what they amount to, how to draw them, what differs.

Every figure of the evaluation is one of these; JSON, CSV, picture and the page are made of it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

from blinkrun.errors import InternalError

Value = str | int | float | bool | Sequence[int] | None
Row = Mapping[str, Value]

OURS = "#1f5fbf"
RING = "#c2571a"
PAPER_OURS = "#9db8e0"
PAPER_RING = "#e6bd9f"
MARK = "#222222"


class Shape(StrEnum):
    """How a panel shows its series."""

    BARS = "bars"
    LINES = "lines"
    BOXES = "boxes"
    POINTS = "points"


@dataclass(frozen=True, slots=True)
class Series:
    """A row of bars, a line or a set of points.

    Attributes
    ----------
    key : str
        Of the rows; of boxes: what the keys ``<key>p05``, ``q1``, ``median``, ``q3``, ``p95``
        begin with. A row without a value has no bar.
    label : str
    color : str
    is_mark : bool
        A stroke across a group of bars rather than a bar: a bound.
    """

    key: str
    label: str
    color: str
    is_mark: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes; those of a figure stand one below the other.

    Attributes
    ----------
    shape : Shape
    x : str
        Key of what stands below the bars, or of the horizontal axis.
    series : tuple of Series
    x_label, y_label : str
    is_log : bool
        Both axes of lines, the vertical one of the others.
    title : str
    """

    shape: Shape
    x: str
    series: tuple[Series, ...]
    x_label: str
    y_label: str
    is_log: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the page's table: the rows' key, its heading, decimals of its numbers."""

    key: str
    heading: str
    digits: int = 1


@dataclass(frozen=True, slots=True)
class Goal:
    """What was wanted of a figure and what came of it.

    Attributes
    ----------
    what : str
    wanted, reached : float
        Reached is at least wanted where the goal is met.
    paper : str
        What the paper says of the same, in words; empty where it says nothing.
    """

    what: str
    wanted: float
    reached: float
    paper: str = ""

    @property
    def is_met(self) -> bool:
        """Whether what is reached is at least what was wanted."""
        return self.reached >= self.wanted


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the paper, simulated.

    Attributes
    ----------
    name : str
        As ``--paper`` takes it: ``fig16``.
    title : str
    rows : tuple of mapping
        JSON values; all rows have the same keys, in the same order.
    columns : tuple of Column
        What the page shows of them.
    panels : tuple of Panel
        The picture.
    summary : mapping
        More keys of the JSON: ``geomean_ratio``, ``max_ratio`` and the like.
    goals : tuple of Goal
    says : tuple of str
        Sentences below the picture.
    causes : tuple of str
        Where this differs from the paper by more than 15 %, and why, a sentence per cause.
    how : str
        What the table shows and how it was made.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    panels: tuple[Panel, ...]
    summary: Mapping[str, Value]
    goals: tuple[Goal, ...] = ()
    says: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    how: str = ""

    def __post_init__(self) -> None:
        if not self.rows:
            raise InternalError(f"{self.name} has no rows")
        keys = list(self.rows[0])
        for row in self.rows:
            if list(row) != keys:
                raise InternalError(f"{self.name} has rows with keys {keys} and {list(row)}")
        used = {column.key for column in self.columns} | {panel.x for panel in self.panels}
        if used - set(keys):
            raise InternalError(f"{self.name} shows {sorted(used - set(keys))}, rows have {keys}")
        if {"fig", "title", "rows", "goals", "causes"} & set(self.summary):
            raise InternalError(f"{self.name}: the summary has a key of the figure itself")

    def as_json(self) -> dict[str, Any]:
        """Return what the file ``figNN.json`` holds."""
        return {
            "fig": self.name,
            "title": self.title,
            "rows": [dict(row) for row in self.rows],
            **self.summary,
            "goals": [asdict(goal) | {"is_met": goal.is_met} for goal in self.goals],
            "causes": list(self.causes),
        }

    def as_csv(self) -> str:
        """Return the rows as text with commas; a list's parts are separated by blanks."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.rows[0])
        for row in self.rows:
            writer.writerow([plain(value) for value in row.values()])
        return file.getvalue()


def plain(value: Value, digits: int | None = None) -> str:
    """Return a value as text: numbers with so many decimals, or as they are.

    >>> plain([0, 1, 4]), plain(2.3456, 1), plain(None), plain(7)
    ('0 1 4', '2.3', '', '7')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return " ".join(map(str, value))
    if isinstance(value, float) and digits is not None:
        return f"{value:.{digits}f}"
    return str(value)


def number(row: Row, key: str) -> float:
    """Return a value of a row that is a number.

    Raises
    ------
    InternalError
        If it is none.
    """
    value = row[key]
    if not isinstance(value, (int, float)):
        raise InternalError(f"a row's {key} is {value!r}, no number")
    return float(value)


def rounded(value: Fraction | float, digits: int = 4) -> float:
    """Return a number for a report, with so many significant digits or whole.

    >>> rounded(Fraction(200_000, 3)), rounded(0.0123456), rounded(0.0)
    (66667.0, 0.01235, 0.0)
    """
    number = float(value)
    shown = float(f"{number:.{digits}g}")
    return float(round(number)) if abs(number) >= 10**digits else shown
