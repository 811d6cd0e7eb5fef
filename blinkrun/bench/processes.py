"""What a process of a benchmark takes of the machine."""

from __future__ import annotations

import re
from pathlib import Path


def peak_bytes(status: str | None = None) -> int:
    r"""Return the most memory that this process has held at a time (VmHWM).

    >>> peak_bytes("VmHWM:\t  20 kB\nVmRSS:\t 10 kB")
    20480
    """
    return _field("VmHWM", status)


def rest_bytes(status: str | None = None) -> int:
    """Return the memory that this process holds now (VmRSS)."""
    return _field("VmRSS", status)


def _field(name: str, status: str | None) -> int:
    text = Path("/proc/self/status").read_text() if status is None else status
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
