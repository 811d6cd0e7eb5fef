"""What `topo` and `plan` share in reading their command lines.

Standard library only, so that help comes at once.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

from blinkrun.errors import UsageError

PICTURES = (".svg", ".png", ".pdf")
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?", re.ASCII)
_LARGEST_LIST = 4096


class Parser(argparse.ArgumentParser):
    """Raises UsageError; an option that is not known is answered with the nearest that is."""

    def __init__(self, command: str, usage: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=f"blinkrun {command}",
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=_Format,
            allow_abbrev=False,
            add_help=False,
        )
        self.command = command

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, in our words for what argparse finds."""
        option, _, problem = message.removeprefix("argument ").partition(": ")
        if problem.startswith("expected"):
            message = f"{option} needs a value"
        elif problem.startswith("ignored explicit"):
            message = f"{option} takes no value"
        raise UsageError(f"{message}; see {self.prog} --help")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the values in `argv`; what is left over is an error of one line.

        Raises
        ------
        UsageError
            If an option is unknown or lacks its value, or there is a word too many.
        """
        args, left = self.parse_known_intermixed_args(list(argv))
        if not left:
            return args
        word = left[0]
        if not word.startswith("-") or word == "-":
            raise UsageError(f"'{word}' is a word too many; see {self.prog} --help")
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"see {self.prog} --help"
        raise UsageError(f"unknown option {name}; {hint}")

    @property
    def options(self) -> tuple[str, ...]:
        """All option names, sorted."""
        return tuple(sorted(self._option_string_actions))


class _Format(argparse.RawDescriptionHelpFormatter):
    """Help in 80 columns, whatever the terminal: the same text everywhere."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=80)


def parse_gpus(flag: str, text: str) -> tuple[int, ...]:
    """Return the GPU numbers of a list, in its order; ``0-3`` stands for 0, 1, 2, 3.

    Raises
    ------
    UsageError
        If it is no such list, empty, or names a GPU twice.

    Examples
    --------
    >>> parse_gpus("--gpus", "7,0-2")
    (7, 0, 1, 2)
    """
    numbers: list[int] = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise UsageError(f"{flag} {text}: '{item}' is no GPU number; write it as 0,1,4 or 0-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _LARGEST_LIST:
            raise UsageError(f"{flag} {text}: {item} is no range of GPU numbers; as 0-3")
        numbers.extend(range(first, last + 1))
    for number in numbers:
        if numbers.count(number) > 1:
            raise UsageError(f"{flag} {text}: GPU {number} is named twice")
    return tuple(numbers)


def parse_loss(text: str) -> Fraction:
    """Return the part of the best rate that may be given up: ``0.05``, ``5%`` or ``1/20``.

    Raises
    ------
    UsageError
        If it is no number of at least 0 and below 1.

    Examples
    --------
    >>> parse_loss("5%") == parse_loss("0.05") == Fraction(1, 20)
    True
    """
    number, percent = text.strip(), False
    if number.endswith("%"):
        number, percent = number[:-1].strip(), True
    try:
        if len(number) > 40 or "e" in number.lower():  # 1e999999999 would take for ever
            raise ValueError
        loss = Fraction(number) / (100 if percent else 1)
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"--loss {text}: not a number; write it as 0.05 or 5%") from None
    if not 0 <= loss < 1:
        raise UsageError(f"--loss {text}: need at least 0 and less than 1 (100 %)")
    return loss


def parse_count(flag: str, text: str, least: int = 1) -> int:
    """Return a whole number of at least `least`.

    Raises
    ------
    UsageError
        If it is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text) >= least):
        raise UsageError(f"{flag} {text}: need a whole number of at least {least}")
    return int(text)


def parse_gbps(flag: str, text: str) -> Fraction:
    """Return a rate in Gbit/s, exactly as it is written.

    Raises
    ------
    UsageError
        If it is no number, or not between 0.001 and 999999.

    Examples
    --------
    >>> parse_gbps("--network-gbps", "0.01")
    Fraction(1, 100)
    """
    gbps = Fraction(text) if _DECIMAL.fullmatch(text) else Fraction(0)
    if not Fraction(1, 1000) <= gbps < 10**6:
        raise UsageError(f"{flag} {text}: need Gbit/s, a number of at least 0.001 such as 100")
    return gbps


def parse_picture(text: str | None) -> Path | None:
    """Return where a picture goes.

    Raises
    ------
    UsageError
        If the suffix is not that of a kind that can be drawn, the folder does not exist, or
        matplotlib is not installed.
    """
    if text is None:
        return None
    path = Path(text)
    if path.suffix.lower() not in PICTURES:
        raise UsageError(f"--plot {text}: the name must end in {', '.join(PICTURES)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {text}: there is no folder {path.parent}")
    if path.is_dir():
        raise UsageError(f"--plot {text}: that is a folder")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'blinkrun[plot]'")
    return path


def one_of(what: str, value: str, known: Sequence[str]) -> str:
    """Return `value` if it is one of `known`; the error names the nearest or all.

    Raises
    ------
    UsageError
        If it is not.
    """
    if value in known:
        return value
    near = difflib.get_close_matches(value.lower(), known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    raise UsageError(f"{what} {value} is unknown; {hint}")
