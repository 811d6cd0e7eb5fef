"""Named collectives in any order; see docs/engine.md, and docs/architecture.md for the layer."""

from blinkrun.engine.engine import Engine, Settings, current, start, stop
from blinkrun.engine.handle import Handle, Part
from blinkrun.engine.request import ADASUM, WORLD, Kind, Member, Request

__all__ = [
    "ADASUM",
    "WORLD",
    "Engine",
    "Handle",
    "Kind",
    "Member",
    "Part",
    "Request",
    "Settings",
    "current",
    "start",
    "stop",
]
