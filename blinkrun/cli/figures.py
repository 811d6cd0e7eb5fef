"""Numbers and lists as `topo` and `plan` print them."""

from __future__ import annotations

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
