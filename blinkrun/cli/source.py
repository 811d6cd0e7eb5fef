"""Which machine a command is about: the catalog's, a file's, standard input's, or this one."""

from __future__ import annotations

import argparse
import codecs
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blinkrun.cli.parsing import parse_count
from blinkrun.errors import UsageError
from blinkrun.log import say

if TYPE_CHECKING:
    from blinkrun.topology.bandwidth import Bandwidths
    from blinkrun.topology.cpu import Host
    from blinkrun.topology.machine import Machine

LARGEST_BYTES = 64 << 20  # the largest real report, an XML of 72 GPUs, has less than 1 MB
STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a machine comes from, and how to take it.

    Attributes
    ----------
    name : str or None
        A file, ``-``, or a name of the catalog; None for this machine.
    partial : bool
        Whether to leave out what is broken.
    report : int or None
        Which of several reports in one text, from 1.
    bandwidths : Path or None
        A file that replaces bandwidths of ours.
    """

    name: str | None
    partial: bool = False
    report: int | None = None
    bandwidths: Path | None = None


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a machine is read."""
    add = parser.add_argument
    add("--partial", action="store_true", help="leave out what is broken in FILE")
    add("--report", metavar="N", help="which of several reports in FILE (default 1)")
    add("--bandwidths", metavar="FILE", help="lines like 'nvlink2_lane = 22.5 GB/s'")


def source_of(name: str | None, args: argparse.Namespace) -> Source:
    """Return the machine that `name` and the options mean; nothing is read yet.

    Raises
    ------
    UsageError
        If ``--report`` is no number, or standard input is to be read twice.
    """
    if name == STANDARD_INPUT and args.bandwidths == STANDARD_INPUT:
        raise UsageError("--bandwidths -: standard input holds the machine already")
    return Source(
        name=name,
        partial=args.partial,
        report=None if args.report is None else parse_count("--report", args.report),
        bandwidths=None if args.bandwidths is None else Path(args.bandwidths),
    )


def load(source: Source) -> Machine | Host:
    """Return the machine that `source` means; the processors of this host if it has no GPU.

    Raises
    ------
    UsageError
        As `load_named`.
    """
    if source.name is not None:
        return load_named(source, source.name)
    from blinkrun.topology.probe import probe_here  # noqa: PLC0415

    for flag, given in (("--partial", source.partial), ("--report", source.report)):
        if given:
            raise UsageError(f"{flag} is for files, none is given")
    machine, host = probe_here()
    return host if machine is None else machine


def load_bandwidths(source: Source) -> Bandwidths:
    """Return our bandwidths, with those of the source's file in place of ours.

    Raises
    ------
    UsageError
        If the file cannot be read.
    ReportError
        If a line of it is wrong.
    """
    from blinkrun.topology.bandwidth import DEFAULT, read_bandwidths  # noqa: PLC0415

    if source.bandwidths is None:
        return DEFAULT
    return read_bandwidths(read_text(str(source.bandwidths)), str(source.bandwidths))


def is_file(name: str) -> bool:
    """Whether `name` means a file: it is a path, or there is one of that name."""
    return os.sep in name or Path(name).is_file()


def load_named(source: Source, name: str) -> Machine:
    """Return the machine of a file, of standard input or of the catalog.

    Raises
    ------
    UsageError
        If there is no such file and no such name, or the file cannot be read.
    ReportError
        If the text cannot be understood.
    """
    if name != STANDARD_INPUT and not is_file(name):
        return _catalogued(source, name)
    from blinkrun.topology.read import read_machine  # noqa: PLC0415

    _say_if_hidden(name)
    text = read_text(name)
    return read_machine(text, name, partial=source.partial, report=source.report)


def read_text(name: str) -> str:
    """Return the text of a file or of standard input, in whatever encoding it came.

    Raises
    ------
    UsageError
        If it cannot be read, or is too large to be a report.
    """
    try:
        if name == STANDARD_INPUT:
            data = sys.stdin.buffer.read(LARGEST_BYTES + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as err:  # ValueError: a name with a null character
        reason = getattr(err, "strerror", None) or str(err)
        raise UsageError(f"{name}: cannot be read: {reason}") from err
    if len(data) > LARGEST_BYTES:
        raise UsageError(f"{name}: more than {LARGEST_BYTES >> 20} MiB, that is no report")
    return decode(data)


def decode(data: bytes) -> str:
    r"""Return bytes as text: UTF-16 if they say so (PowerShell writes it), else UTF-8.

    >>> decode("NV1".encode("utf-16")), decode(b"caf\xe9")
    ('NV1', 'caf\ufffd')
    """
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def _catalogued(source: Source, name: str) -> Machine:
    from blinkrun.topology.catalog import described  # noqa: PLC0415

    for flag, given in (("--partial", source.partial), ("--report", source.report)):
        if given:
            raise UsageError(f"{flag} is for files, '{name}' is none")
    try:
        return described(name)
    except UsageError as err:
        raise UsageError(f"{err}; nor is there a file of that name") from None


def _say_if_hidden(name: str) -> None:
    """Say that a file is read where the catalog has a machine of that name."""
    from blinkrun.topology.catalog import machines  # noqa: PLC0415

    if name in machines():
        say(f"note: '{name}' is read from the file here, not from the catalog")
