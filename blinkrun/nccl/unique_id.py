"""Unique ids: a secret that ranks of one host meet by, and that says which host it is of."""

from __future__ import annotations

import hashlib
import secrets

from blinkrun.comm.world import this_host
from blinkrun.nccl.constants import NCCL_UNIQUE_ID_BYTES
from blinkrun.nccl.status import Status, refused

_MARK_BYTES = 16  # at the end of an id: which host made it


def new_id() -> bytes:
    """Return a new id, made on this host.

    >>> check_host(new_id())
    """
    random = secrets.token_bytes(NCCL_UNIQUE_ID_BYTES - 2 * _MARK_BYTES)
    return random + _mark(random, "") + _mark(random, repr(this_host()))


def check_host(unique_id: bytes) -> None:
    """Raise NcclError (invalid usage) for an id that `new_id` has made on another host."""
    random = unique_id[: -2 * _MARK_BYTES]
    ours, host = unique_id[-2 * _MARK_BYTES : -_MARK_BYTES], unique_id[-_MARK_BYTES:]
    if ours == _mark(random, "") and host != _mark(random, repr(this_host())):
        raise refused(
            Status.INVALID_USAGE,
            f"commId was made on another host than this one ({this_host()[0]}): communicators of"
            " blinkrun.nccl join ranks of one host; over several use blinkrun.init()",
        )


def _mark(random: bytes, what: str) -> bytes:
    return hashlib.sha256(random + what.encode()).digest()[:_MARK_BYTES]
