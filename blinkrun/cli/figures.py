"""Numbers and lists as `topo` and `plan` print them."""

from __future__ import annotations

import re
from collections.abc import Sequence


def format_rate(value: float) -> str:
    """Return a rate, a time or a ratio in four significant digits.

    >>> format_rate(78.857142), format_rate(23.0), format_rate(12345.6), format_rate(0.00456)
    ('78.86', '23', '12,346', '0.00456')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_gpus(numbers: Sequence[int]) -> str:
    """Return GPU numbers in their order, runs of three and more as ``--gpus`` takes them.

    >>> format_gpus([0, 1, 4]), format_gpus([0, 1, 2, 3, 7]), format_gpus([3, 2, 1])
    ('0,1,4', '0-3,7', '3,2,1')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs
    )


def format_seconds(seconds: float) -> str:
    """Return a time in the unit that suits it.

    >>> format_seconds(0.0000123), format_seconds(0.0042), format_seconds(1.5)
    ('12.3 us', '4.2 ms', '1.5 s')
    """
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds:.4g} s"


def format_bytes(count: int) -> str:
    """Return a size in decimal units.

    >>> format_bytes(1000), format_bytes(10**9)
    ('1 KB', '1 GB')
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= size:
            return f"{count / size:g} {unit}"
    return f"{count} B"


def resource_names(names: Sequence[str]) -> str:
    """Return names that differ in their numbers only, what they share written once.

    >>> resource_names(["port 0 in", "port 1 in", "port 2 in"])
    'port 0-2 in'
    >>> resource_names(["nvlink 0->1", "nvlink 3->2"])
    'nvlink 0->1 3->2'
    """
    if len(names) == 1:
        return names[0]
    parts = [re.split(r"([0-9]+)", name) for name in names]
    places = [at for at in range(1, len(parts[0]), 2) if len({part[at] for part in parts}) > 1]
    if len(places) == 1:
        at = places[0]
        numbers = format_gpus(sorted(int(part[at]) for part in parts))
        return "".join([*parts[0][:at], numbers, *parts[0][at + 1 :]])
    start = parts[0][0][: parts[0][0].rfind(" ") + 1]
    return start + " ".join(name.removeprefix(start) for name in names)
