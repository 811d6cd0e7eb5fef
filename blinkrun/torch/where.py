"""Which line of the user's program calls, for messages."""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType

import torch

from blinkrun import engine

# The benchmark, which is neither, calls as a script does.
_LIBRARIES = tuple(
    os.path.dirname(path) + os.sep for path in (__file__, engine.__file__, torch.__file__)
)


def caller() -> str:
    """Return file and line of the nearest code that is neither the adapter's nor torch's."""
    return place(calling_frame())


def calling_frame() -> FrameType:
    """Return the frame of that code; the outermost one if there is none."""
    frame: FrameType | None = sys._getframe(1)
    outermost = frame
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        outermost, frame = frame, frame.f_back
    return outermost if frame is None else frame


def place(frame: FrameType) -> str:
    """Return ``file:line`` of what runs in `frame`, below the working directory without it."""
    return f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}"


@functools.cache
def _shown(path: str) -> str:
    """Return a path as messages show it; the directory is that of the first look."""
    near = os.path.relpath(path) if os.path.isabs(path) else path
    return path if near.startswith("..") else near
