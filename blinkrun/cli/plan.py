"""``blinkrun plan``: the best trees for a collective on a machine, proven and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blinkrun.cli.output import emit, json_text
from blinkrun.cli.plan_options import PlanOptions, make_parser, parse
from blinkrun.errors import ReportError, UsageError

if TYPE_CHECKING:
    from blinkrun.cli.subject import Subject

# What plans and draws is imported where it is needed: the help must come at once.


def main(argv: Sequence[str]) -> int:
    """Carry out ``blinkrun plan argv`` and return its exit code.

    Raises
    ------
    UsageError
        If it cannot be carried out, with one line for the user.
    """
    try:
        options = parse(argv)
        if options is None:
            return emit(make_parser().format_help())
        return emit(_plan(options))
    except ReportError:
        raise  # it says itself where it is
    except UsageError as err:
        raise UsageError(f"plan: {err}") from err


def _plan(options: PlanOptions) -> str:
    """Return what is to be printed, after the picture is drawn."""
    from blinkrun.cli.subject import subject_of  # noqa: PLC0415

    named = (*(options.gpus or ()), *options.relays, *(options.free or ()))
    subject = subject_of(options.source, named)
    if options.advise is not None:
        from blinkrun.cli.plan_advice import advice_of, advice_text  # noqa: PLC0415

        advice = advice_of(subject, options)
        return json_text(advice) if options.json else advice_text(advice)
    from blinkrun.cli.plan_text import plan_text  # noqa: PLC0415
    from blinkrun.cli.planning import report_of  # noqa: PLC0415

    report = report_of(subject, options)
    if options.plot is not None:
        _draw(subject, report, options.plot)
    return json_text(report) if options.json else plan_text(report)


def _draw(subject: Subject, report: Mapping[str, Any], path: Path) -> None:
    from blinkrun.cli.plot_plan import draw_plan  # noqa: PLC0415
    from blinkrun.topology.machine import Machine  # noqa: PLC0415
    from blinkrun.topology.model import fabric_of, pcie_tree  # noqa: PLC0415

    if not isinstance(subject.found, Machine):
        raise UsageError("--plot draws GPUs, there is none here; --topology names a machine")
    machine = subject.found
    draw_plan(machine, fabric_of(machine), pcie_tree(machine), report, path)
