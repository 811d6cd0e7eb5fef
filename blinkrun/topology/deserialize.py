"""Reads a machine from JSON: all of what `serialize.machine_json` writes, or only its facts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from typing import Any, TypeVar

from blinkrun.errors import ReportError, TopologyError
from blinkrun.topology.complaints import Complaints
from blinkrun.topology.json_text import Entry, read_entries
from blinkrun.topology.json_values import (
    WrongValueError,
    count_of,
    counts_of,
    link_status_of,
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
    LinkStatus,
    Machine,
    Nic,
    NicPath,
    NvSwitch,
    PciNode,
    PciPath,
    Wire,
    Xgmi,
)

FORMAT = "blinkrun machine 1"

_KEYS = (
    "gpu_names",
    "nics",
    "nvlink",
    "pcie",
    "xgmi",
    "gpu_nic",
    "pci_devices",
    "nic_legend",
    "nvlink_status",
    "p2p_status",
    "self_links",
    "nvlink_via",
    "nvswitch",
    "missing_rows",
    "format",
    "name",
    "source",
    "gpus",
    "nic_details",
    "tree",
    "notes",
)
_REMARK = re.compile(r"note|order|fingerprint|[a-z]+_note")  # for people, or made from the rest
_BUS_ID = re.compile(r"(?:[0-9a-f]{4,8}:)?([0-9a-f]{2}):[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)

T = TypeVar("T")
Named = TypeVar("Named", Gpu, Nic)


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


def read_json(text: str, source: str, *, partial: bool = False) -> Machine:
    r"""Return the machine that a JSON object describes.

    Parameters
    ----------
    text : str
        What `machine_json` gave, as JSON, or any part of it that has ``gpu_names`` (or
        ``pci_devices``). What is left out is taken to be absent from the machine.
    source : str
        The file's name, for messages.
    partial : bool, default False
        Leave out entries that are wrong or cut, and say so in the machine's notes.

    Raises
    ------
    ReportError
        If the text is no JSON object, a key is unknown, or a value is not what its key needs.

    Examples
    --------
    >>> read_json('{"gpu_names": ["A", "B"], "nvlink": [[0, 1, 4]]}', "pair.json").nvlink
    (Wire(low=0, high=1, lanes=4),)
    >>> read_json('{"gpu_names": ["A", "B"],\n "nvlink": [[0, 2, 4]]}', "pair.json")
    Traceback (most recent call last):
    blinkrun.errors.ReportError: pair.json:2: nvlink[0] names GPU 2, there are 2, from 0; ...
    """
    entries, broken = read_entries(text)
    complaints = Complaints(source, partial)
    reader = _Reader(entries, complaints)
    if broken:
        problem = f"not JSON: {broken.problem}; expected what blinkrun topo --json prints"
        complaints.add(broken.line, problem)
    reader.value("format", _check_format, None)
    gpus, is_identified = reader.devices()
    nics = reader.nics()
    parts = _Parts(gpus, nics)
    try:
        return Machine(
            name=reader.value("name", text_of, source),
            source=reader.value("source", text_of, "JSON"),
            gpus=gpus,
            nics=nics,
            nvlink=reader.each_or_none("nvlink", parts.wire),
            xgmi=reader.each("xgmi", parts.xgmi),
            pcie=reader.each_or_none("pcie", parts.pcie),
            gpu_nic=tuple(chain.from_iterable(reader.each("gpu_nic", parts.gpu_nic))),
            p2p=reader.each("p2p_status", parts.p2p),
            switches=reader.value("nvswitch", parts.switches, ()),
            status=reader.each("nvlink_status", _status),
            tree=reader.value("tree", parts.tree, ()),
            self_links=reader.each("self_links", parts.self_link),
            missing=reader.texts("missing_rows"),
            is_identified=is_identified,
            notes=(*reader.texts("notes"), *complaints.notes),
        )
    except TopologyError as err:
        raise ReportError(source, 0, str(err)) from err


def _check_format(value: object) -> None:
    if value != FORMAT:
        raise WrongValueError(f"is {shown(value)}, expected '{FORMAT}'")


def _status(*entry: Any) -> LinkStatus:
    """Return an entry of ``nvlink_status``: of an object by GPU, or of a list."""
    *gpu, value = entry
    return link_status_of(value, *gpu)


class _Reader:
    """Turns entries into parts of a machine; what is wrong is raised, or noted and left out."""

    def __init__(self, entries: Iterable[Entry], complaints: Complaints) -> None:
        self.complaints = complaints
        self.entries: dict[str, Entry] = {}
        for entry in entries:
            self._take(entry)

    def _take(self, entry: Entry) -> None:
        """Keep an entry by its key, if it says anything here."""
        if entry.key in self.entries:
            self.complaints.add(entry.line, f"key '{entry.key}' stands twice")
        elif entry.key in _KEYS:
            self.entries[entry.key] = entry
        elif not _REMARK.fullmatch(entry.key):
            near = get_close_matches(entry.key, _KEYS, n=1) or [", ".join(_KEYS)]
            self.complaints.add(entry.line, f"key '{entry.key}' is unknown; expected {near[0]}")

    def value(self, key: str, read: Callable[[Any], T], default: T) -> T:
        """Return the value of a key, or `default` where it is absent or left out."""
        entry = self.entries.get(key)
        if entry is None:
            return default
        try:
            return read(entry.value)
        except WrongValueError as err:
            self.complaints.add(entry.line, f"{key} {err}")
            return default

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the list of strings of a key."""
        none: tuple[str, ...] = ()
        return self.value(key, texts_of, none)

    def each(self, key: str, read: Callable[..., T]) -> tuple[T, ...]:
        """Return the items of a list, or of an object (`read` then gets key and value)."""
        entry = self.entries.get(key)
        if entry is None:
            return ()
        is_object = isinstance(entry.value, dict)
        calls: Iterable[tuple[Any, ...]] = ()
        try:
            calls = entry.value.items() if is_object else ((item,) for item in list_of(entry.value))
        except WrongValueError as err:
            self.complaints.add(entry.line, f"{key} {err}")
        items = []
        for at, call in enumerate(calls):
            try:
                items.append(read(*call))
            except WrongValueError as err:
                where = shown(call[0]) if is_object else at
                self.complaints.add(entry.line, f"{key}[{where}] {err}")
        return tuple(items)

    def each_or_none(self, key: str, read: Callable[..., T]) -> tuple[T, ...] | None:
        """Return the items, or None where the value is null: it is not told."""
        entry = self.entries.get(key)
        return None if entry is not None and entry.value is None else self.each(key, read)

    def devices(self) -> tuple[tuple[Gpu, ...], bool]:
        """Return the GPUs and whether they are known to be some."""
        key = "gpu_names"
        if key not in self.entries or self.entries[key].value is None:
            key = "pci_devices"
        if key not in self.entries:
            problem = "no gpu_names; expected a list of the GPUs' names"
            raise ReportError(self.complaints.source, 0, problem)
        return self._named(Gpu, "gpus", self.texts(key)), key == "gpu_names"

    def nics(self) -> tuple[Nic, ...]:
        """Return the NICs with what is told of each."""
        nics = self._named(Nic, "nic_details", self.texts("nics"))
        names = labels([nic.name for nic in nics])
        at = {name: index for index, name in enumerate(names)}

        def device(name: str, value: object) -> tuple[int, str]:
            return _index(at, name, "NIC"), text_of(value)

        devices = dict(self.each("nic_legend", device))
        return tuple(
            replace(nic, device=devices.get(index, nic.device)) for index, nic in enumerate(nics)
        )

    def _named(self, kind: type[Named], key: str, names: Sequence[str]) -> tuple[Named, ...]:
        """Return the devices, with details where there is one object for each."""
        plain = tuple(kind(name) for name in names)

        def detailed(value: object) -> tuple[Named, ...]:
            details = list_of(value)
            if len(details) != len(names):
                raise WrongValueError(f"has {len(details)} objects, expected {len(names)}")
            return tuple(
                replace(record_of(kind, {"name": name, **object_of(each)}), name=name)
                for name, each in zip(names, details, strict=True)
            )

        return self.value(key, detailed, plain)


class _Parts:
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
        at = _index(self.gpu_at, gpu, "GPU")
        return tuple(
            NicPath(at, _index(self.nic_at, nic, "NIC"), text_of(level))
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


def _index(positions: Mapping[str, int], name: str, what: str) -> int:
    if name not in positions:
        raise WrongValueError(f"names {what} {shown(name)}, expected one of {', '.join(positions)}")
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
