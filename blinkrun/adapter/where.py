"""Which line of the user's program calls, for messages."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable
from types import FrameType

from blinkrun import engine

# The benchmark, which is none, calls as a script does.
_libraries: tuple[str, ...] = ()


def pass_over(*files: str) -> None:
    """Take no file in the folders of `files` for the user's program."""
    global _libraries  # noqa: PLW0603
    _libraries += tuple(os.path.dirname(path) + os.sep for path in files)


pass_over(__file__, engine.__file__)


def caller() -> str:
    """Return file and line of the nearest code that is neither an adapter's nor a framework's."""
    return place(calling_frame())


def calling_frame() -> FrameType:
    """Return the frame of that code; the outermost one if there is none."""
    outermost = sys._getframe(1)
    frame: FrameType | None = outermost
    while frame is not None and frame.f_code.co_filename.startswith(_libraries):
        outermost, frame = frame, frame.f_back
    return outermost if frame is None else frame


def place(frame: FrameType) -> str:
    """Return ``file:line`` of what runs in `frame`, below the working directory without it."""
    return f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def first_place(lines: Iterable[tuple[str, int]]) -> str:
    """Return ``file:line`` of the first of (path, number) that is the user's, empty if none is."""
    for path, number in lines:
        if not path.startswith(_libraries):
            return f"{_shown(path)}:{number}"
    return ""


@functools.cache
def _shown(path: str) -> str:
    """Return a path as messages show it; the directory is that of the first look."""
    near = os.path.relpath(path) if os.path.isabs(path) else path
    return path if near.startswith("..") else near
