"""Checked values out of JSON: each function returns what it was asked for or says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from blinkrun.topology.machine import Gpu, LinkStatus, Nic, PciKind, PciNode

_PAIR = re.compile(r"([0-9]{1,6})-([0-9]{1,6})", re.ASCII)
_MOST = 2**53  # what JSON readers everywhere keep exactly

Record = TypeVar("Record", Gpu, Nic, PciNode)


class WrongValueError(Exception):
    """A value that cannot be used; the text says what it is and what was expected."""


def shown(value: object) -> str:
    """Return a value short enough for one line."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def text_of(value: object) -> str:
    """Return a string."""
    if isinstance(value, str):
        return value
    raise WrongValueError(f"is {shown(value)}, expected text")


def texts_of(value: object) -> tuple[str, ...]:
    """Return a list of strings."""
    return tuple(text_of(item) for item in list_of(value))


def list_of(value: object) -> list[Any]:
    """Return a list."""
    if isinstance(value, list):
        return value
    raise WrongValueError(f"is {shown(value)}, expected a list")


def object_of(value: object) -> Mapping[str, Any]:
    """Return an object."""
    if isinstance(value, dict):
        return value
    raise WrongValueError(f"is {shown(value)}, expected an object")


def count_of(value: object, least: int = 0) -> int:
    """Return a whole number of at least `least`."""
    if type(value) is int and least <= value <= _MOST:
        return value
    raise WrongValueError(f"has {shown(value)}, expected a whole number >= {least}")


def number_of(value: object) -> float:
    """Return a finite number that is not negative."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST:
        return float(value)
    raise WrongValueError(f"has {shown(value)}, expected a number >= 0")


def flag_of(value: object) -> bool:
    """Return true or false."""
    if isinstance(value, bool):
        return value
    raise WrongValueError(f"has {shown(value)}, expected true or false")


def counts_of(value: object) -> tuple[int, ...]:
    """Return a list of whole numbers >= 0."""
    return tuple(count_of(item) for item in list_of(value))


def pair_of(text: str) -> tuple[int, int]:
    """Return the two GPUs that a key such as ``0-1`` names."""
    match = _PAIR.fullmatch(text)
    if match is None:
        raise WrongValueError("expected a pair of GPUs such as 0-1")
    return int(match[1]), int(match[2])


def link_status_of(value: object, gpu: str | None = None) -> LinkStatus:
    """Return what ``nvlink --status`` says of a GPU; its name is given or in the object."""
    entry = object_of(value)
    inactive = entry.get("inactive", 0)
    gb_per_s = entry.get("gbps")
    return LinkStatus(
        gpu=text_of(entry.get("gpu")) if gpu is None else gpu,
        active=count_of(entry.get("active")),
        inactive=None if inactive is None else count_of(inactive),
        gb_per_s=None if gb_per_s is None else number_of(gb_per_s),
        is_cut=flag_of(entry.get("cut", False)),
    )


def record_of(kind: type[Record], value: object, **given: object) -> Record:
    """Return a `Gpu`, `Nic` or `PciNode` from an object with its attributes.

    Examples
    --------
    >>> record_of(Nic, {"device": "mlx5_0"}, name="NIC0")
    Nic(name='NIC0', device='mlx5_0', bus_id='', numa=None, mbit_per_s=None)
    """
    known = {field.name: field for field in fields(kind)}
    found: dict[str, Any] = dict(given)
    for key, item in object_of(value).items():
        if key not in known:
            raise WrongValueError(f"has key '{key}', expected one of {', '.join(known)}")
        try:
            found[key] = _CHECKS[str(known[key].type)](item)
        except WrongValueError as err:
            raise WrongValueError(f"'{key}' {err}") from err
    for name, field in known.items():
        if field.default is MISSING and name not in found:
            raise WrongValueError(f"has no '{name}'")
    return kind(**found)


def _pci_kind(value: object) -> PciKind:
    try:
        return PciKind(text_of(value))
    except ValueError as err:
        kinds = ", ".join(PciKind)
        raise WrongValueError(f"is {shown(value)}, expected one of {kinds}") from err


def _parent(value: object) -> int:
    return -1 if value == -1 else count_of(value)


def _or_none(check: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None else check(value)


# by the annotation of the attribute
_CHECKS: dict[str, Callable[[object], Any]] = {
    "str": text_of,
    "int": _parent,
    "int | None": _or_none(count_of),
    "float | None": _or_none(number_of),
    "tuple[int, ...]": counts_of,
    "PciKind": _pci_kind,
}
