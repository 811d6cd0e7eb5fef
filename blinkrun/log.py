"""What blinkrun says on stderr: one line at a time, with the rank in front."""

from __future__ import annotations

import sys


def say(message: str, rank: int | None = None) -> None:
    """Write one line to stderr in a single write, so that lines of several ranks stay whole."""
    who = "" if rank is None else f"[rank {rank}] "
    sys.stderr.write(f"blinkrun: {who}{message}\n")
    sys.stderr.flush()
