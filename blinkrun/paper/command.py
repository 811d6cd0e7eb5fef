"""``blinkrun simulate --paper``: the paper's evaluation in one command."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from blinkrun.errors import UsageError
from blinkrun.log import say

if TYPE_CHECKING:
    from blinkrun.paper.figure import Figure

# Figures by name, and what makes each; in the order of the page.
FIGURES = {
    "fig13": "blinkrun.paper.theory:fig13",
    "fig14": "blinkrun.paper.collectives:fig14",
    "fig15": "blinkrun.paper.collectives:fig15",
    "fig16": "blinkrun.paper.collectives:fig16",
    "fig17": "blinkrun.paper.training:fig17",
    "fig18": "blinkrun.paper.switch:fig18",
    "fig19a": "blinkrun.paper.training:fig19a",
    "fig19b": "blinkrun.paper.hosts:fig19b",
    "fig26": "blinkrun.paper.hybrid:fig26",
    "fig27": "blinkrun.paper.switch:fig27",
}
ALL = "all"
_PARTS = {"fig19": ("fig19a", "fig19b")}  # a figure of several, by the paper's name
EMULATED = "emulated"  # by --emulate alone
_MORE = {EMULATED: "blinkrun.paper.emulate:emulated"}

USAGE = "blinkrun simulate --paper [FIGURE ...] --out DIR [--page FILE] [--emulate]"
EPILOG = """\
FIGURE is one of {names}, or all, which is the default.
DIR gets figNN.json, figNN.csv and figNN.svg for each, and paper.md, the page of them all.

  blinkrun simulate --paper fig14 fig16 --out paper
"""


@dataclass(frozen=True, slots=True)
class PaperOptions:
    """What is asked for: figures, where they go, and whether the emulator runs as well."""

    figures: tuple[str, ...]
    out: Path
    page: Path
    emulate: bool
    pictures: bool


class _Parser(argparse.ArgumentParser):
    """Raises UsageError in one line."""

    def error(self, message: str) -> NoReturn:
        option, _, problem = message.removeprefix("argument ").partition(": ")
        if problem.startswith("expected"):
            message = f"{option} needs a value"
        raise UsageError(f"{message}; see blinkrun simulate --paper --help")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the options that go with ``--paper``."""
    parser = _Parser(
        prog="blinkrun simulate --paper",
        usage=USAGE,
        description="Run the Blink paper's evaluation on the simulator, and write it down.",
        epilog=EPILOG.format(names=", ".join(FIGURES)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = parser.add_argument
    add("--paper", nargs="*", metavar="FIGURE", help="which figures; all if none is named")
    add("--out", metavar="DIR", help="folder for the results; made if it does not exist")
    add("--page", metavar="FILE", help="where the page goes (default DIR/paper.md)")
    add("--emulate", action="store_true", help="run all allocations on the emulator as well")
    add("--no-pictures", action="store_true", help="leave out the pictures, which take matplotlib")
    add("--help", "-h", action="store_true", help="show this text")
    return parser


def parse(argv: Sequence[str]) -> PaperOptions | None:
    """Return the options in `argv`, None if help is asked for.

    Raises
    ------
    UsageError
        If they cannot be carried out; nothing has been computed then.
    """
    args = make_parser().parse_args(list(argv))
    if args.help:
        return None
    if args.out is None:
        raise UsageError("--paper: where to? give --out DIR")
    out = Path(args.out)
    page = out / "paper.md" if args.page is None else Path(args.page)
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is no folder")
    if page.is_dir():
        raise UsageError(f"--page {page} is a folder")
    if not args.no_pictures and importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "--paper: pictures need matplotlib, pip install 'blinkrun[plot]';"
            " --no-pictures leaves them out"
        )
    return PaperOptions(
        figures=_chosen(args.paper or [ALL]),
        out=out,
        page=page,
        emulate=args.emulate,
        pictures=not args.no_pictures,
    )


def _chosen(words: Sequence[str]) -> tuple[str, ...]:
    """Return the figures that `words` name, in the order of the page; commas separate as well."""
    names = [name for word in words for name in word.lower().split(",")]
    names += [part for name in names for part in _PARTS.get(name, ())]
    known = (*FIGURES, *_PARTS, ALL)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}? There are" if near else "there are"
            raise UsageError(f"--paper {name}: {hint} {', '.join((*FIGURES, ALL))}")
    return tuple(name for name in FIGURES if name in names or ALL in names)


def main(argv: Sequence[str]) -> int:
    """Carry out ``blinkrun simulate argv``, where `argv` has ``--paper``; return the exit code.

    Raises
    ------
    UsageError
        If it cannot be carried out, with one line for the user.
    """
    options = parse(argv)
    if options is None:
        sys.stdout.write(make_parser().format_help())
        return 0
    return run_paper(options)


def run_paper(options: PaperOptions) -> int:
    """Make every figure that is asked for, then the page; return the exit code."""
    from blinkrun.paper.page import page  # noqa: PLC0415 - the help must come at once

    _make_folders(options)
    figures = []
    for name in (*options.figures, *([EMULATED] if options.emulate else [])):
        start = time.monotonic()
        figure = maker(name)()
        _write(figure, options)
        figures.append(figure)
        say(f"simulate --paper: {name} took {time.monotonic() - start:.1f} s")
    options.page.write_text(page(figures, out=options.out, at=options.page), encoding="utf-8")
    say(f"simulate --paper: wrote {options.page}")
    return 0


def maker(name: str) -> Callable[[], Figure]:
    """Return the function that makes the figure of that name."""
    module, _, function = (FIGURES | _MORE)[name].partition(":")
    found: Callable[[], Figure] = getattr(import_module(module), function)
    return found


def _make_folders(options: PaperOptions) -> None:
    for folder in (options.out, options.page.absolute().parent):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise UsageError(f"--paper: cannot make {folder}: {err.strerror}") from err


def _write(figure: Figure, options: PaperOptions) -> None:
    stem = options.out / figure.name
    text = json.dumps(figure.as_json(), indent=1) + "\n"
    stem.with_suffix(".json").write_text(text, encoding="utf-8")
    stem.with_suffix(".csv").write_text(figure.as_csv(), encoding="utf-8")
    if options.pictures:
        from blinkrun.paper.draw import draw  # noqa: PLC0415 - may be missing

        draw(figure, stem.with_suffix(".svg"))
