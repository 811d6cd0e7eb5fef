"""Environment variables that ``-x`` hands to the ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from blinkrun.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def forwarded(requests: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that ``-x`` requests name, with their values.

    Parameters
    ----------
    requests : iterable of str
        ``NAME`` (the value comes from `environ`) or ``NAME=VALUE``; the last of a name counts.
    environ : mapping
        The launcher's environment.

    Raises
    ------
    UsageError
        If a name is no name, or is not set and has no value.

    Examples
    --------
    >>> forwarded(["A", "B=2", "C="], {"A": "1"})
    {'A': '1', 'B': '2', 'C': ''}
    """
    found = {}
    for request in requests:
        name, has_value, value = request.partition("=")
        if not _NAME.fullmatch(name):
            raise UsageError(f"-x {name}: not a variable's name; write -x NAME or -x NAME=VALUE")
        if not has_value:
            if name not in environ:
                raise UsageError(f"-x {name}: {name} is not set here; write -x {name}=VALUE")
            value = environ[name]
        found[name] = value
    return found
