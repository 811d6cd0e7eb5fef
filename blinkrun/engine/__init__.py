"""Named collectives in any order; see docs/engine.md, and docs/architecture.md for the layer."""

from blinkrun.engine.engine import Engine, current, start, stop
from blinkrun.engine.handle import Handle, Part
from blinkrun.engine.request import ADASUM, WORLD, Kind, Member, Request
from blinkrun.engine.settings import Settings

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
