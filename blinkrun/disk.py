"""Files kept for later processes: whole or not at all, and known to be what was written."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path


def read(path: Path) -> bytes | None:
    """Return what `write` kept at `path`; None if there is nothing.

    Raises
    ------
    ValueError
        If the content is not what was written.
    OSError
        If the file cannot be read.
    """
    try:
        head, _, body = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if head.decode("ascii", "replace") != hashlib.sha256(body).hexdigest():
        raise ValueError("its content is not what was written")
    return body


def write(body: bytes, path: Path) -> None:
    """Keep `body` so that other processes see all of it or nothing; makes the folder.

    Raises
    ------
    OSError
        If it cannot be written; nothing is left then.
    """
    # a name of its own for every writer, in the same folder so that the last step is a rename
    unfinished = path.with_name(f".unfinished-{os.urandom(8).hex()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise
