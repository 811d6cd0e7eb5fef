"""A plan that the first rank makes and all others get."""

from __future__ import annotations

from collections.abc import Callable

from blinkrun.comm.base import ControlPlane
from blinkrun.errors import LaunchError
from blinkrun.planner.plan import Plan


def agreed_plan(control: ControlPlane, make: Callable[[], Plan]) -> Plan:
    """Return on every rank what `make` returns on the first, the only one that calls it.

    Raises
    ------
    LaunchError
        On the other ranks, if `make` raises on the first.
    """
    text = None
    error = None
    if control.rank == 0:
        try:
            text = make().to_json()
        except Exception as err:
            error = err
    text, reason = control.broadcast((text, None if error is None else f"{error}"))
    if error is not None:
        raise error
    if text is None:
        raise LaunchError(f"{reason} (rank 0 could not plan)")
    return Plan.from_json(text)
