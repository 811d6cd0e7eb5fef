"""``blinkrun simulate``: what a collective takes on a machine, on a virtual clock."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blinkrun.cli.output import emit, json_text
from blinkrun.cli.simulate_options import SimulateOptions, make_parser, parse
from blinkrun.errors import PlanError, ProgramError, ReportError, TopologyError, UsageError
from blinkrun.log import say

_PROGRESS_S = 5.0  # between two lines of it
_PAPER = "--paper"
# What plans, simulates and draws is imported where it is needed: the help must come at once.


def main(argv: Sequence[str]) -> int:
    """Carry out ``blinkrun simulate argv`` and return its exit code.

    Raises
    ------
    UsageError
        If it cannot be carried out, with one line for the user.
    """
    try:
        if _PAPER in argv:
            from blinkrun.paper.command import main as paper  # noqa: PLC0415

            return paper(argv)
        options = parse(argv)
        if options is None:
            return emit(make_parser().format_help())
        return emit(_simulate(options))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except ReportError:
        raise  # it says itself where it is
    except (UsageError, PlanError, ProgramError, TopologyError) as err:
        raise UsageError(f"simulate: {err}") from err


def _simulate(options: SimulateOptions) -> str:
    """Return what is to be printed, after the picture and the trace are written."""
    from blinkrun.cli.simulate_text import simulate_text  # noqa: PLC0415
    from blinkrun.cli.simulating import simulate_all, trace_of  # noqa: PLC0415
    from blinkrun.cli.subject import subject_of  # noqa: PLC0415

    named = [gpu for group in options.gpus for gpu in group]
    subject = subject_of(options.source, named)
    simulated = simulate_all(subject, options, _Progress())
    if options.plot is not None:
        from blinkrun.cli.plot_simulate import draw_simulated  # noqa: PLC0415

        draw_simulated(simulated.report, options.plot)
    if options.trace is not None:
        _write(options.trace, trace_of(simulated))
    return json_text(simulated.report) if options.json else simulate_text(simulated.report)


class _Progress:
    """Says on stderr how far it is, but not of what is over soon."""

    def __init__(self) -> None:
        self.said_s = time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        now_s = time.monotonic()
        if now_s - self.said_s >= _PROGRESS_S:
            self.said_s = now_s
            say(f"simulate: {done} of {of} sizes are done")


def _write(path: Path, trace: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(trace, separators=(",", ":")) + "\n")
    except OSError as err:
        raise UsageError(f"--trace {path}: {err.strerror or err}") from err
