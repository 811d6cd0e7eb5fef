"""Machines known by name: what a report of each would state, and its topology."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache

from blinkrun.errors import UsageError
from blinkrun.topology.catalog_build import build
from blinkrun.topology.catalog_machines import ALIASES, MACHINES
from blinkrun.topology.graph import Topology
from blinkrun.topology.machine import Machine
from blinkrun.topology.model import LANE, MB_PER_S, LinkSet, topology_of

__all__ = ["LANE", "MB_PER_S", "LinkSet", "aliases", "described", "machine", "machines"]


def machines() -> tuple[str, ...]:
    """Return the names that `described` and `machine` know, without `aliases`.

    >>> machines()[:3]
    ('dgx-1p', 'dgx-1v', 'dgx-2')
    """
    return tuple(MACHINES)


def aliases() -> dict[str, str]:
    """Return other names, and which machine each means.

    >>> aliases()["p3.16xlarge"]
    'dgx-1v'
    """
    return dict(ALIASES)


@cache
def described(name: str) -> Machine:
    """Return what a report of a known machine would state.

    Parameters
    ----------
    name : str
        One of `machines()` or `aliases()`, in any case.

    Raises
    ------
    UsageError
        If the machine is unknown; names near ones.

    Examples
    --------
    >>> described("dgx-1v").gpus[0].model
    'Tesla V100-SXM2-16GB'
    """
    key = name.lower().replace("_", "-")
    key = ALIASES.get(key, key)
    if key in MACHINES:
        return build(key, MACHINES[key])
    near = get_close_matches(key, (*MACHINES, *ALIASES), n=3)
    hint = f"near are {', '.join(near)}" if near else f"it has {', '.join(MACHINES)}"
    raise UsageError(f"no machine '{name}' in the catalog; {hint}")


def machine(name: str, links: LinkSet = LinkSet.NVLINK) -> Topology:
    """Return the topology of a known machine.

    Parameters
    ----------
    name : str
        As for `described`.
    links : LinkSet, default NVLINK
        With NVLINK alone capacities count lanes; with PCIE or ALL they are MB/s, so that links of
        different kinds can be compared.

    Returns
    -------
    Topology
        All GPUs of the machine; `induce` cuts out those of a job.

    Raises
    ------
    UsageError
        If the machine is unknown or has no such links.

    Examples
    --------
    >>> dgx1 = machine("dgx-1v")
    >>> dgx1.size, len(dgx1.links), dgx1.unit
    (8, 32, 'lane')
    """
    return topology_of(described(name), LinkSet(links))
