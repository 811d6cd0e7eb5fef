"""How commands write their result: whole, or silently not at all where nobody reads any more."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from io import TextIOWrapper

# A list without lists or objects; a line break stands nowhere but between values.
_PLAIN_LIST = re.compile(r"\[\n([^\[\]{}]*)\n *\]")
_COMMA = ",\n"


def json_text(value: object) -> str:
    """Return JSON for scripts that people can read too: lists of plain values on a line each.

    >>> print(json_text({"a": [1, 2], "b": {"c": [[0, 1], [2, 3]]}}), end="")
    {
     "a": [1, 2],
     "b": {
      "c": [
       [0, 1],
       [2, 3]
      ]
     }
    }
    """
    return _PLAIN_LIST.sub(_on_a_line, json.dumps(value, indent=1)) + "\n"


def _on_a_line(match: re.Match[str]) -> str:
    return f"[{', '.join(part.strip() for part in match[1].split(_COMMA))}]"


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
