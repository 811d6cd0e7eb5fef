"""Jobs on emulated machines for the tests of `bench --emulate`."""

from __future__ import annotations

from collections.abc import Sequence

from blinkrun.bench.emulate_job import EmulatedJob
from blinkrun.bench.emulate_options import EmulateOptions, parse
from blinkrun.bench.emulate_plan import job_of


def options_of(words: str) -> EmulateOptions:
    """Return the options of ``bench --emulate words``."""
    options = parse(["--emulate", *words.split()])
    assert options is not None
    return options


def job_for(words: str, num_ranks: int | None = None) -> EmulatedJob:
    """Return the job of ``bench --emulate words``."""
    return job_of(options_of(words), num_ranks)


def cells(line: str) -> list[list[str]]:
    """Return the columns of a line of the table, group by group."""
    return [group.split() for group in line.split("|")]


def rows_of(lines: Sequence[str]) -> list[list[list[str]]]:
    """Return the cells of all lines that are no comments."""
    return [cells(line) for line in lines if line and not line.startswith("#")]
