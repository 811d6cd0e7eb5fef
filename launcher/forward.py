"""What the launcher hands to the ranks: variables of ``-x``, and plans that were made for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from blinkrun.errors import LaunchError, UsageError

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


@contextmanager
def handed_files(texts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Keep texts in files that only this user can read, for as long as the context lasts.

    Parameters
    ----------
    texts : mapping of str to str
        By the variable that names the file to the ranks.

    Yields
    ------
    dict
        These variables with the paths of the files; empty without texts.

    Raises
    ------
    LaunchError
        If a file cannot be written.
    """
    if not texts:
        yield {}
        return
    import tempfile  # noqa: PLC0415 - most jobs need none

    paths = {}
    try:
        folder = tempfile.TemporaryDirectory(prefix="blinkrun-", ignore_cleanup_errors=True)
        for name, text in texts.items():
            path = Path(folder.name, f"{name.lower()}.json")
            path.write_text(text, encoding="utf-8")
            paths[name] = str(path)
    except OSError as err:
        raise LaunchError(f"the plan cannot be handed to the ranks: {err}") from err
    with folder:
        yield paths
