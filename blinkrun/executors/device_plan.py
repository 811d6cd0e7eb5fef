"""The plan of ranks on devices: the host's GPUs and links, and which ranks have which of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blinkrun.errors import LaunchError
from blinkrun.executors.device_api import DeviceInfo
from blinkrun.topology.devices import DeviceLinks, Place, Reach
from blinkrun.topology.devices import device_topology as links_between

if TYPE_CHECKING:
    from blinkrun.planner.plan import Plan
    from blinkrun.topology.graph import Topology
    from blinkrun.topology.machine import Machine


def probe() -> Machine | None:
    """Return the GPUs of this host, all of them, whichever this process may use."""
    from blinkrun.topology.probe import probe_machine  # noqa: PLC0415 - a job on CPUs needs none

    return probe_machine()


def plan_devices(
    infos: Sequence[DeviceInfo],
    reach: Reach,
    *,
    links: str = DeviceLinks.AUTO,
    sharing: int = 1,
    machine: Callable[[], Machine | None] | None = None,
) -> Plan:
    """Return the plan of a host's ranks on their devices, kept from an earlier job or made.

    To be called by one rank; the others are told.

    Parameters
    ----------
    infos : sequence of DeviceInfo
        The device of every rank of this host, by local rank.
    reach : sequence of sequence of bool
        ``reach[a][b]``: kernels on rank a's device can address memory of rank b's.
    links : str, default auto
        See `DeviceLinks`.
    sharing : int, default 1
        How many ranks may have one device.
    machine : callable, optional
        Tells the GPUs of the host; `probe` if not given.

    Raises
    ------
    LaunchError
        If more ranks than `sharing` have one device.
    UsageError
        If the links that are asked for do not join the ranks.
    """
    from blinkrun.planner import store  # noqa: PLC0415

    check_sharing(infos, sharing)
    folder: Path = store.cache_dir()
    return store.plan_of(device_topology(infos, reach, links=links, machine=machine), folder)


def device_topology(
    infos: Sequence[DeviceInfo],
    reach: Reach,
    *,
    links: str = DeviceLinks.AUTO,
    machine: Callable[[], Machine | None] | None = None,
) -> Topology:
    """Return the links between the devices of a host's ranks; see `plan_devices`."""
    places = [Place(info.pci_bus_id, info.uuid) for info in infos]
    is_shared = len({place.bus for place in places}) < len(places)
    found = None if len(places) == 1 or is_shared else (machine or probe)()
    return links_between(found, places, reach, DeviceLinks(links))


def check_sharing(infos: Sequence[DeviceInfo], sharing: int) -> None:
    """Refuse more than `sharing` ranks on one device.

    Raises
    ------
    LaunchError
        With the local ranks, the device, and what to do.
    """
    ranks: dict[str, list[int]] = {}
    for rank, info in enumerate(infos):
        ranks.setdefault(info.uuid or info.pci_bus_id, []).append(rank)
    for members in ranks.values():
        if len(members) > sharing:
            info = infos[members[0]]
            who = " and ".join(map(str, members)) if len(members) == 2 else _listed(members)
            allowed = "" if sharing == 1 else f", and {sharing} may"
            raise LaunchError(
                f"local ranks {who} use the same GPU {info.pci_bus_id} ({info.name}){allowed}:"
                " give each its own (torch.cuda.set_device(blinkrun.local_device())), start fewer"
                f" ranks, or allow it with --gpus-per-rank 1/{len(members)}: they then share its"
                " memory and take turns on it, which is slow without NVIDIA's MPS"
            )


def _listed(ranks: Sequence[int]) -> str:
    return f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
