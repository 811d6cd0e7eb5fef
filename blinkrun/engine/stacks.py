"""What this process is doing: the Python stacks of its threads, as text for a stall report."""

from __future__ import annotations

import sys
import threading
import traceback
from types import FrameType

OWN_THREADS = "blinkrun"  # threads whose names begin so are the library's, and are left out
_FRAMES = 12  # of each thread, the innermost


def describe_threads(limit_chars: int = 8000) -> str:
    """Return the stacks of this process's threads, the main thread's first.

    Each has its innermost frames, outermost of them first as in a traceback. Threads that wait for
    work in the standard library's pools are shown like any other.

    Parameters
    ----------
    limit_chars : int
        Most characters; what is beyond is left out, and said to be.
    """
    frames = sys._current_frames()
    main = threading.main_thread()
    threads = sorted(threading.enumerate(), key=lambda thread: thread is not main)
    known = {thread.ident for thread in threads}
    blocks = [
        _block(thread.name, frames[thread.ident])
        for thread in threads
        if thread.ident in frames and not thread.name.startswith(OWN_THREADS)
    ]
    strangers = sorted(ident for ident in frames if ident not in known)
    blocks += [_block(f"thread {ident}", frames[ident]) for ident in strangers]
    return _limit(blocks, limit_chars)


def _block(name: str, frame: FrameType) -> str:
    stack = traceback.extract_stack(frame)
    while stack and stack[-1].filename == __file__:
        stack.pop()
    lines = [f"{name}:"]
    if len(stack) > _FRAMES:
        lines.append(f"  ... {len(stack) - _FRAMES} frames")
    for step in stack[-_FRAMES:]:
        lines.append(f"  {step.filename}:{step.lineno} in {step.name}")
        if step.line:
            lines.append(f"    {step.line}")
    return "\n".join(lines)


def _limit(blocks: list[str], limit_chars: int) -> str:
    """Join whole blocks while they fit; the first is cut rather than left out."""
    if blocks and len(blocks[0]) > limit_chars:
        blocks = [f"{blocks[0][: max(limit_chars, 0)]} ...", *blocks[1:]]
    shown: list[str] = []
    left = limit_chars
    for number, block in enumerate(blocks):
        left -= len(block) + 1
        if left < 0 and number:
            shown.append(f"... and {len(blocks) - number} more threads")
            break
        shown.append(block)
    return "\n".join(shown)
