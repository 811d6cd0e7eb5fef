"""A machine as JSON: what it states (`facts`), and that with everything else it knows.

The facts are plain and short, for scripts and for people who write a machine by hand; they are
part of the whole, not beside it, so that editing them edits the machine. `read_json` reads either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from blinkrun.topology.deserialize import FORMAT, read_json
from blinkrun.topology.json_parts import labels, switch_labels
from blinkrun.topology.machine import (
    Gpu,
    LinkStatus,
    Machine,
    Nic,
    NvSwitch,
    PciNode,
    PciPath,
    Xgmi,
)

__all__ = ["facts", "machine_json", "read_json"]


def facts(machine: Machine) -> dict[str, Any]:
    """Return what a machine states, as plain JSON values.

    Returns
    -------
    dict
        Always ``gpu_names`` (None where a file does not say what its devices are), ``nics``,
        ``nvlink`` ([i, j, lanes] or None where pairs are not told), ``pcie`` ({"0-1": "PIX"},
        from rocm-smi {"0-1": {"type", "hops", "weight"}}, or None), ``xgmi`` ([i, j, {"lanes"} or
        {"hops", "weight"}]) and ``gpu_nic`` ({GPU: {NIC: level}}). Where there is such a thing:
        ``nic_legend``, ``nvlink_status``, ``p2p_status``, ``self_links``, ``nvlink_via``,
        ``nvswitch``, ``pci_devices``, ``missing_rows``.

    Examples
    --------
    >>> from blinkrun.topology.machine import Wire
    >>> pair = Machine("pair", "by hand", (Gpu("GPU0"), Gpu("GPU1")), nvlink=(Wire(0, 1, 4),))
    >>> {key: value for key, value in facts(pair).items() if value}
    {'gpu_names': ['GPU0', 'GPU1'], 'nvlink': [[0, 1, 4]]}
    """
    names = [gpu.name for gpu in machine.gpus]
    stated: dict[str, Any] = {
        "gpu_names": names if machine.is_identified else None,
        "nics": [nic.name for nic in machine.nics],
        "nvlink": _nvlink(machine),
        "pcie": _pcie(machine),
        "xgmi": [[pair.low, pair.high, _xgmi(pair)] for pair in machine.xgmi],
        "gpu_nic": _gpu_nic(machine),
    }
    if not machine.is_identified:
        stated["pci_devices"] = names
    sometimes: dict[str, Any] = {
        "nic_legend": _nic_legend(machine.nics),
        "nvlink_status": _status(machine.status),
        "p2p_status": {f"{low}-{high}": word for low, high, word in machine.p2p},
        "self_links": [[gpu, gpu, lanes] for gpu, lanes in machine.self_links],
        "nvlink_via": "nvswitch" if machine.switches else "",
        "nvswitch": _switches(machine.switches, machine.num_gpus),
        "missing_rows": list(machine.missing),
    }
    return stated | {key: value for key, value in sometimes.items() if value}


def machine_json(machine: Machine) -> dict[str, Any]:
    """Return all that is known of a machine, as plain JSON values that `read_json` takes back.

    Returns
    -------
    dict
        ``format``, ``name``, ``source``, the `facts`, then ``gpus``, ``nic_details`` and ``tree``
        (objects with the attributes of `Gpu`, `Nic` and `PciNode` that are not empty) and
        ``notes``.
    """
    return {
        "format": FORMAT,
        "name": machine.name,
        "source": machine.source,
        **facts(machine),
        "gpus": _records(machine.gpus),
        "nic_details": _records(machine.nics),
        "tree": _records(machine.tree),
        "notes": list(machine.notes),
    }


def _nvlink(machine: Machine) -> list[list[int]] | None:
    if machine.nvlink is None:
        return None
    return [[wire.low, wire.high, wire.lanes] for wire in machine.nvlink]


def _pcie(machine: Machine) -> dict[str, Any] | None:
    if machine.pcie is None:
        return None
    return {f"{path.low}-{path.high}": _pci_path(path) for path in machine.pcie}


def _pci_path(path: PciPath) -> str | dict[str, Any]:
    """Return the level alone where there is no more, as nvidia-smi prints it."""
    counts = _stated({"hops": path.hops, "weight": path.weight})
    return {"type": path.level, **counts} if counts else path.level


def _xgmi(pair: Xgmi) -> dict[str, int]:
    return _stated({"lanes": pair.lanes, "hops": pair.hops, "weight": pair.weight})


def _stated(counts: dict[str, int | None]) -> dict[str, int]:
    return {key: count for key, count in counts.items() if count is not None}


def _gpu_nic(machine: Machine) -> dict[str, dict[str, str]]:
    gpus = labels([gpu.name for gpu in machine.gpus])
    nics = labels([nic.name for nic in machine.nics])
    levels: dict[str, dict[str, str]] = {}
    for path in machine.gpu_nic:
        levels.setdefault(gpus[path.gpu], {})[nics[path.nic]] = path.level
    return levels


def _nic_legend(nics: tuple[Nic, ...]) -> dict[str, str]:
    names = labels([nic.name for nic in nics])
    return {name: nic.device for name, nic in zip(names, nics, strict=True) if nic.device}


def _status(status: tuple[LinkStatus, ...]) -> dict[str, dict[str, Any]] | list[dict[str, Any]]:
    """Return an object by GPU, or a list where two entries have the same name."""
    entries = [(each.gpu, _link_status(each)) for each in status]
    by_gpu = dict(entries)
    if len(by_gpu) == len(entries):
        return by_gpu
    return [{"gpu": gpu, **entry} for gpu, entry in entries]


def _link_status(status: LinkStatus) -> dict[str, Any]:
    entry = {"active": status.active, "inactive": status.inactive, "gbps": status.gb_per_s}
    return entry | ({"cut": True} if status.is_cut else {})


def _switches(switches: tuple[NvSwitch, ...], num_gpus: int) -> dict[str, Any]:
    if not switches:
        return {}
    names = [switch.name for switch in switches]
    per_switch = [_lanes(switch, num_gpus) for switch in switches]
    return {
        "switches": names,
        "lanes_per_gpu": [sum(lanes) for lanes in zip(*(s.lanes for s in switches), strict=True)],
        "lanes_per_switch": dict(zip(switch_labels(names), per_switch, strict=True)),
    }


def _lanes(switch: NvSwitch, num_gpus: int) -> int | list[int]:
    """Return one number where every GPU has as many lanes to the switch, else one per GPU."""
    is_even = len(set(switch.lanes)) == 1 and len(switch.lanes) == num_gpus
    return switch.lanes[0] if is_even else list(switch.lanes)


def _records(items: Iterable[Gpu | Nic | PciNode]) -> list[dict[str, Any]]:
    """Return the attributes that are not at their defaults."""
    return [
        {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in fields(item)
            if (value := getattr(item, field.name)) != field.default
        }
        for item in items
    ]
