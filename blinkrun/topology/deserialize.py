"""Reads a machine from JSON: all of what `serialize.machine_json` writes, or only its facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from typing import Any, TypeVar

from blinkrun.errors import ReportError, TopologyError
from blinkrun.topology.complaints import Complaints
from blinkrun.topology.json_parts import Parts, index_of, labels
from blinkrun.topology.json_text import Entry, read_entries
from blinkrun.topology.json_values import (
    WrongValueError,
    link_status_of,
    list_of,
    object_of,
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
# remarks for people, and what `blinkrun topo --json` derives from the rest
_REMARK = re.compile(r"note|order|[a-z]+_note|fingerprint|fabric|cpus|is_complete")

T = TypeVar("T")
Named = TypeVar("Named", Gpu, Nic)


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
    if broken:
        problem = f"not JSON: {broken.problem}; expected what blinkrun topo --json prints"
        complaints.add(broken.line, problem)
    reader = _Reader(entries, complaints)
    reader.value("format", _check_format, None)
    gpus, is_identified = reader.devices()
    nics = reader.nics()
    parts = Parts(gpus, nics)
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
            self.complaints.add(entry.line, f"key {shown(entry.key)} stands twice")
        elif entry.key in _KEYS:
            self.entries[entry.key] = entry
        elif not _REMARK.fullmatch(entry.key):
            near = get_close_matches(entry.key, _KEYS, n=1) or [*_KEYS[:5], "…"]
            problem = f"key {shown(entry.key)} is unknown; expected {', '.join(near)}"
            self.complaints.add(entry.line, problem)

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
            return index_of(at, name, "NIC"), text_of(value)

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
