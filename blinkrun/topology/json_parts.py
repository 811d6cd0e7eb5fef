"""Parts of a machine out of JSON: what refers to GPUs and NICs, checked against those there are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from blinkrun.topology.json_values import (
    WrongValueError,
    count_of,
    counts_of,
    list_of,
    object_of,
    pair_of,
    record_of,
    shown,
    text_of,
    texts_of,
)
from blinkrun.topology.machine import (
    Gpu,
    Nic,
    NicPath,
    NvSwitch,
    PciNode,
    PciPath,
    Wire,
    Xgmi,
)

_BUS_ID = re.compile(r"(?:[0-9a-f]{4,8}:)?([0-9a-f]{2}):[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)


def labels(names: Sequence[str]) -> list[str]:
    """Return names that tell the items apart: their own, with ``#index`` where two are alike.

    >>> labels(["mlx5_0", "eth0", "mlx5_0"])
    ['mlx5_0#0', 'eth0', 'mlx5_0#2']
    """
    times = Counter(names)
    told = [name if times[name] == 1 else f"{name}#{at}" for at, name in enumerate(names)]
    return told if len(set(told)) == len(told) else [str(at) for at in range(len(names))]


def switch_labels(names: Sequence[str]) -> list[str]:
    """Return short names for switches: the bus number where that tells them apart.

    >>> switch_labels(["0000:f3:00.0", "0000:f4:00.0"])
    ['f3', 'f4']
    """
    buses = [_BUS_ID.fullmatch(name) for name in names]
    short = [bus[1] if bus else name for bus, name in zip(buses, names, strict=True)]
    return short if len(set(short)) == len(short) else labels(names)


class Parts:
    """Reads what refers to GPUs and NICs, which it knows."""

    def __init__(self, gpus: tuple[Gpu, ...], nics: tuple[Nic, ...]) -> None:
        self.num_gpus = len(gpus)
        self.num_nics = len(nics)
        self.gpu_at = _positions([gpu.name for gpu in gpus])
        self.nic_at = _positions([nic.name for nic in nics])
        self.seen: set[tuple[str, int, int]] = set()

    def wire(self, value: object) -> Wire:
        """Return an NVLink from ``[0, 1, 4]``."""
        low, high, lanes = _three(value)
        return Wire(*self._pair("nvlink", low, high), count_of(lanes, 1))

    def xgmi(self, value: object) -> Xgmi:
        """Return an xGMI link from ``[0, 1, {"hops": 1, "weight": 15}]``."""
        low, high, counts = _three(value)
        return Xgmi(*self._pair("xgmi", low, high), **_counts(counts, ("lanes", "hops", "weight")))

    def self_link(self, value: object) -> tuple[int, int]:
        """Return a GPU and its lanes from ``[0, 0, 12]``."""
        gpu, again, lanes = _three(value)
        if gpu != again:
            raise WrongValueError(f"joins {shown(gpu)} and {shown(again)}, expected one GPU twice")
        return self._gpu(gpu), count_of(lanes, 1)

    def pcie(self, key: str, value: object) -> PciPath:
        """Return the level of a pair from ``"0-1": "PIX"``."""
        pair = self._pair("pcie", *pair_of(key))
        if isinstance(value, str):
            return PciPath(*pair, value)
        entry = object_of(value)
        counts = {name: count for name, count in entry.items() if name != "type"}
        return PciPath(*pair, text_of(entry.get("type")), **_counts(counts, ("hops", "weight")))

    def p2p(self, key: str, value: object) -> tuple[int, int, str]:
        """Return whether a pair has peer access from ``"0-1": "OK"``."""
        return *self._pair("p2p", *pair_of(key)), text_of(value)

    def gpu_nic(self, gpu: str, levels: object) -> tuple[NicPath, ...]:
        """Return the levels of a GPU from ``"GPU0": {"NIC0": "PIX"}``."""
        at = index_of(self.gpu_at, gpu, "GPU")
        return tuple(
            NicPath(at, index_of(self.nic_at, nic, "NIC"), text_of(level))
            for nic, level in object_of(levels).items()
        )

    def switches(self, value: object) -> tuple[NvSwitch, ...]:
        """Return the switches from their names and the lanes to each."""
        entry = object_of(value)
        names = texts_of(entry.get("switches"))
        lanes = object_of(entry.get("lanes_per_switch"))
        return tuple(
            NvSwitch(name, self._lanes(lanes.get(label)))
            for name, label in zip(names, switch_labels(names), strict=True)
        )

    def tree(self, value: object) -> tuple[PciNode, ...]:
        """Return the PCI tree; what is wrong in it makes all of it unusable."""
        nodes = tuple(record_of(PciNode, node) for node in list_of(value))
        for at, node in enumerate(nodes):
            if not node.parent < at:
                raise WrongValueError(f"has {node.name} before what it hangs on")
            if max((-1, *node.gpus)) >= self.num_gpus or max((-1, *node.nics)) >= self.num_nics:
                raise WrongValueError(f"has {node.name} with a GPU or NIC that there is not")
        return nodes

    def _lanes(self, value: object) -> tuple[int, ...]:
        if isinstance(value, list):
            lanes = counts_of(value)
            if len(lanes) == self.num_gpus:
                return lanes
        return (count_of(value),) * self.num_gpus

    def _pair(self, kind: str, low: object, high: object) -> tuple[int, int]:
        pair = self._gpu(low), self._gpu(high)
        if not pair[0] < pair[1]:
            raise WrongValueError(f"joins GPUs {low} and {high}, expected the lower one first")
        if (kind, *pair) in self.seen:
            raise WrongValueError(f"is GPUs {low} and {high} a second time")
        self.seen.add((kind, *pair))
        return pair

    def _gpu(self, value: object) -> int:
        gpu = count_of(value)
        if gpu >= self.num_gpus:
            raise WrongValueError(f"names GPU {gpu}, there are {self.num_gpus}, from 0")
        return gpu


def _positions(names: Sequence[str]) -> dict[str, int]:
    return {label: at for at, label in enumerate(labels(names))}


def index_of(positions: Mapping[str, int], name: str, what: str) -> int:
    """Return the index that a name stands for."""
    if name not in positions:
        known = [*list(positions)[:8], *(["…"] if len(positions) > 8 else [])]
        raise WrongValueError(f"names {what} {shown(name)}, expected one of {', '.join(known)}")
    return positions[name]


def _three(value: object) -> list[Any]:
    items = list_of(value)
    if len(items) != 3:
        raise WrongValueError(f"is {shown(items)}, expected two GPUs and what joins them")
    return items


def _counts(value: object, names: tuple[str, ...]) -> dict[str, int]:
    counts = object_of(value)
    for key in counts:
        if key not in names:
            raise WrongValueError(f"has key {shown(key)}, expected {', '.join(names)}")
    return {key: count_of(count) for key, count in counts.items()}
