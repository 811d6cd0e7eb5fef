"""What joins a host to others: how fast, how far, and over which of its NICs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from blinkrun.errors import TopologyError
from blinkrun.types import Rank

MB_PER_S_PER_GBPS = 125
FINE_UNIT = "kB/s"  # where a network does not carry whole MB/s: 10 Mbit/s are 1.25


@dataclass(frozen=True, slots=True)
class Network:
    """What joins a host to the others.

    Attributes
    ----------
    mb_per_s : Fraction or int
        What all its NICs send together, and receive at the same time; more than 0.
    latency_us : int, default 50
        Of a small message to another host, from start to arrival; at least 1.
    nics : int, default 1
        NICs, all alike.
    nic_of : tuple of int, optional
        The NIC next to each of the host's ranks, which carries what that rank sends and receives.
        Not given: every rank's messages may take any.

    Raises
    ------
    TopologyError
        If a number makes no sense.

    Examples
    --------
    >>> Network.of_gbps(Fraction(1, 100)).mb_per_s
    Fraction(5, 4)
    """

    mb_per_s: Fraction | int
    latency_us: int = 50
    nics: int = 1
    nic_of: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.mb_per_s <= 0 or self.nics < 1:
            raise TopologyError(
                f"a network of {self.mb_per_s} MB/s over {self.nics} NICs carries nothing"
            )
        if self.latency_us < 1:
            raise TopologyError(f"a network's latency is {self.latency_us} us; need at least 1")
        if any(nic not in range(self.nics) for nic in self.nic_of):
            raise TopologyError(f"ranks are next to NICs {self.nic_of}, there are {self.nics}")

    @classmethod
    def of_gbps(cls, gbps: Fraction | int, *, nics: int = 1, latency_us: int = 50) -> Network:
        """Return a network of so many Gbit/s a NIC."""
        if gbps <= 0 or nics < 1:
            raise TopologyError(
                f"a network of {gbps} Gbit/s over {nics} NICs carries nothing; need more than 0"
            )
        return cls(Fraction(gbps) * MB_PER_S_PER_GBPS * nics, latency_us, nics)

    @property
    def is_told_apart(self) -> bool:
        """Whether it is known which NIC a rank's messages take."""
        return self.nics > 1 and bool(self.nic_of)

    @property
    def resource_mb_per_s(self) -> Fraction:
        """MB/s of each of `resources`."""
        return Fraction(self.mb_per_s) / (self.nics if self.is_told_apart else 1)

    def capacity(self, scale: int) -> int:
        """Return the capacity of each of `resources` in units of 1 / `scale` MB/s."""
        return max(1, round(self.resource_mb_per_s * scale))

    def resources(self, way: str) -> list[str]:
        """Return what a topology calls its NICs, ``out`` or ``in``, without the host's name.

        >>> Network(100).resources("out"), Network(100, nics=2, nic_of=(0, 1)).resources("in")
        (['network out'], ['network 0 in', 'network 1 in'])
        """
        if not self.is_told_apart:
            return [f"network {way}"]
        return [f"network {nic} {way}" for nic in range(self.nics)]

    def resource_of(self, rank: Rank, way: str) -> str:
        """Return which of `resources` the messages of a host's own `rank` take."""
        return self.resources(way)[self.nic_of[rank] if self.is_told_apart else 0]


def scale_of(networks: Iterable[Network]) -> int:
    """Return how many units an MB/s must have for the networks' rates: 1, or 1000 for kB/s."""
    return 1 if all(network.resource_mb_per_s.denominator == 1 for network in networks) else 1000
