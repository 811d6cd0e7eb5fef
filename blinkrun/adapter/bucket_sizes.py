"""How large gradient buckets are, and which gradients are not copied into them."""

from __future__ import annotations

from typing import Any

from blinkrun import env
from blinkrun.errors import UsageError

DEFAULT_BUCKET_BYTES = 25 << 20
DIRECT_BYTES = 4 << 20


def choose_bucket_bytes(wanted: int | None) -> int:
    """Return the size of the largest bucket; None asks the environment.

    Raises
    ------
    UsageError
        If `wanted` is no whole number above 0.
    """
    if wanted is None:
        return env.size_bytes(env.BUCKET, DEFAULT_BUCKET_BYTES)
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise UsageError(f"bucket_bytes is {wanted!r}, need a whole number of at least 1")
    return wanted


def choose_direct_bytes(world: Any) -> int | None:
    """Return the size from which gradients are not copied; None copies all.

    Two ranks on two cores took 3.8 ms to copy 25 MB and reduce them in the arena, 2.7 ms to reduce
    them from where they were. But that way ranks wait for each other at every chunk: where they
    share cores, the copy is no slower.
    """
    return DIRECT_BYTES if world.local_size <= world.cores else None
