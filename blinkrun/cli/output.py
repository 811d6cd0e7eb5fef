"""How commands write their result: whole, or silently not at all where nobody reads any more."""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper


def emit(text: str) -> int:
    """Write `text` to stdout and return the exit code.

    A reader that has gone (``| head``) is no error worth a word: the code is then that of a
    program which the closed pipe ends.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without these letters shows ?
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # what is left in the buffer must not meet the closed pipe again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return 0
