"""Ways from host to host: trees over the hosts, and the part of the data that each carries.

For allreduce every host is once on top, and all others hang on it: the NIC of a host on top of the
part x of the data carries x (H - 1) + (1 - x) of it each way. For broadcast every other host once
stands between the root's and the rest, so that the root's NIC sends the data once; reduce is that
backwards. Parts are as the NICs are: equal where these are about equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from blinkrun.planner.packing import Flow

Way = tuple[Fraction, tuple[tuple[int, int], ...]]  # the part, and its (parent, child) hosts

_ALIKE = Fraction(4, 5)  # rates that differ by less are measured, not meant


def ways_of(flow: Flow, rates: Sequence[Fraction], root_host: int | None) -> list[Way]:
    """Return the trees over all hosts that allreduce, broadcast or reduce take.

    Parameters
    ----------
    flow : Flow
    rates : sequence of Fraction
        What the NICs of each host carry, in any unit.
    root_host : int or None
        The root's, for broadcast and reduce.

    Examples
    --------
    >>> [(str(part), way) for part, way in ways_of(Flow.DOWN, [Fraction(1)] * 3, 1)]
    [('1/2', ((1, 0), (0, 2))), ('1/2', ((1, 2), (2, 0)))]
    """
    hosts = range(len(rates))
    if root_host is None:
        tops = zip(top_parts(rates), hosts, strict=True)
        return [(part, direct(hosts, top)) for part, top in tops if part]
    if len(rates) == 2:
        return [(Fraction(1), direct(hosts, root_host))]
    return relayed(rates, root_host)


def direct(hosts: Sequence[int], top: int) -> tuple[tuple[int, int], ...]:
    """Return all others below one host."""
    return tuple((top, other) for other in hosts if other != top)


def relayed(rates: Sequence[Fraction], top: int) -> list[Way]:
    """Return, for every host but `top`, the way that goes by it to all others."""
    others = [host for host in range(len(rates)) if host != top]
    parts = _shared([rates[host] for host in others])
    return [
        (part, ((top, middle), *((middle, rest) for rest in others if rest != middle)))
        for part, middle in zip(parts, others, strict=True)
    ]


def top_parts(rates: Sequence[Fraction]) -> list[Fraction]:
    """Return of which part of an allreduce each host is on top.

    NICs of c carry the data at the rate min(c_least, sum(c) / 2 (H - 1)), which is the most: a host
    takes what its NIC has left beside its leaf's part.

    >>> [str(part) for part in top_parts([Fraction(100), Fraction(100), Fraction(300)])]
    ['0', '0', '1']
    >>> [str(part) for part in top_parts([Fraction(100), Fraction(95), Fraction(110)])]
    ['1/3', '1/3', '1/3']
    """
    num_hosts = len(rates)
    if num_hosts == 2 or min(rates) >= _ALIKE * max(rates):
        return [Fraction(1, num_hosts)] * num_hosts
    rate = min(*rates, sum(rates, Fraction(0)) / (2 * (num_hosts - 1)))
    left = [each - rate for each in rates]
    return [each / sum(left) for each in left]


def _shared(rates: Sequence[Fraction]) -> list[Fraction]:
    """Return parts in proportion to the rates, equal where these are about equal."""
    if min(rates) >= _ALIKE * max(rates):
        return [Fraction(1, len(rates))] * len(rates)
    return [rate / sum(rates, Fraction(0)) for rate in rates]
