"""Which addresses this host has, which of them another host reaches, and which names mean it."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence

from blinkrun.errors import UsageError

_SIOCGIFADDR = 0x8915
_INET6_TABLE = "/proc/net/if_inet6"
_LINK_LOCAL = 0x20
_DISCARD = 9  # no packet is sent: connecting a datagram socket only looks up the route


def interface_addresses() -> dict[str, tuple[str, ...]]:
    """Return the addresses of each network interface that has some, IPv4 first.

    Of several IPv4 addresses of one interface the first only; no IPv6 address that needs a scope.
    """
    found = {name: _ipv4(name) for _, name in socket.if_nameindex()}
    for name, address in _ipv6():
        found[name] = (*found.get(name, ()), address)
    return {name: addresses for name, addresses in found.items() if addresses}


def _ipv4(name: str) -> tuple[str, ...]:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return ()  # it has none
    return (socket.inet_ntoa(answer[20:24]),)


def _ipv6() -> list[tuple[str, str]]:
    try:
        with open(_INET6_TABLE, encoding="ascii") as table:
            rows = [line.split() for line in table]
    except OSError:
        return []
    return [
        (row[5], str(ipaddress.IPv6Address(bytes.fromhex(row[0]))))
        for row in rows
        if int(row[3], 16) != _LINK_LOCAL
    ]


def resolved(host: str) -> tuple[str, ...]:
    """Return the addresses of `host`; empty where no name service knows it (an alias of ssh's)."""
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(answer[4][0]) for answer in answers))


def is_local(host: str, interfaces: Mapping[str, Sequence[str]] | None = None) -> bool:
    """Whether `host` means the host that this process runs on."""
    own = os.uname().nodename
    if host.rstrip(".").lower() in ("localhost", own.lower(), own.partition(".")[0].lower()):
        return True
    known = interface_addresses() if interfaces is None else interfaces
    here = {address for addresses in known.values() for address in addresses}
    return any(
        address in here or ipaddress.ip_address(address.partition("%")[0]).is_loopback
        for address in resolved(host)
    )


def route_source(host: str) -> str | None:
    """Return the address of this host that packets to `host` carry; None if there is no route."""
    for address in resolved(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, _DISCARD))
            source = str(probe.getsockname()[0])
            if not ipaddress.ip_address(source.partition("%")[0]).is_loopback:
                return source
    return None


def listening_addresses(
    hosts: Iterable[str], interfaces: Sequence[str], *, most_hosts: int = 8
) -> tuple[str, ...]:
    """Return the addresses of this host on which other hosts should reach the launcher.

    Parameters
    ----------
    hosts : iterable of str
        The other hosts.
    interfaces : sequence of str
        Network interfaces that are to be used; empty: those on the way to the first `most_hosts`
        of `hosts`, or all if no name service knows these.

    Raises
    ------
    UsageError
        If an interface is not there or has no address, or if there is no network at all.
    """
    known = interface_addresses()
    if interfaces:
        return tuple(address for name in interfaces for address in _of_interface(name, known))
    routes = (route_source(host) for host in list(hosts)[:most_hosts])
    found = tuple(dict.fromkeys(route for route in routes if route is not None))
    found = found or tuple(
        address
        for addresses in known.values()
        for address in addresses
        if not ipaddress.ip_address(address).is_loopback
    )
    if not found:
        raise UsageError("this host has no network interface with an address: no host reaches it")
    return found


def _of_interface(name: str, known: Mapping[str, Sequence[str]]) -> Sequence[str]:
    if name not in known:
        have = ", ".join(sorted(known))
        raise UsageError(
            f"--network-interface {name}: this host has none of that name with an address; it has"
            f" {have}"
        )
    return known[name]
