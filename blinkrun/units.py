"""Sizes as people write them (``4K``, ``1.5M``, ``256MiB``) and as tables print them."""

from __future__ import annotations

import re

from blinkrun.errors import UsageError

KIB = 1024
_SUFFIX = {"": 1, "K": KIB, "M": KIB**2, "G": KIB**3, "T": KIB**4}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes that `text` names; K, M, G, T are powers of 1024, as in nccl-tests.

    Raises
    ------
    UsageError
        If `text` is no size or not a whole number of bytes.

    Examples
    --------
    >>> parse_size("4"), parse_size("16K"), parse_size("1.5MiB")
    (4, 16384, 1572864)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"'{text}' is no size; write bytes with an optional K, M or G, as 4, 16K, 256M"
        )
    size = float(match[1]) * _SUFFIX[match[2].upper()]
    if size != int(size):
        raise UsageError(f"'{text}' is not a whole number of bytes")
    return int(size)


def format_size(num_bytes: int) -> str:
    """Return `num_bytes` in the largest unit that keeps it whole.

    >>> format_size(16384), format_size(1000), format_size(3 << 20)
    ('16 KiB', '1000 B', '3 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < KIB or num_bytes % KIB:
            return f"{num_bytes} {unit}"
        num_bytes //= KIB
    return f"{num_bytes} TiB"
