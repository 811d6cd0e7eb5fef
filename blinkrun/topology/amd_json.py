"""The JSON of AMD's tools: ``rocm-smi --showtopo --json`` and ``amd-smi topology --json``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blinkrun.errors import ReportError
from blinkrun.topology.amd_tables import AmdReport, Cell, Kind
from blinkrun.topology.complaints import Complaints
from blinkrun.topology.nccl_values import bus_id_of, is_bus_id

_BEGIN = re.compile(r"^[ \t]*([\[{])(?=\s*[\"\[{])", re.MULTILINE)
_ROCM_PAIR = re.compile(
    r"\(topology\) (weight|hops|link type|link accessibility) between drm devices "
    r"([0-9]{1,4}) and ([0-9]{1,4})"
)
_ROCM_KINDS = {"link accessibility": Kind.ACCESS}
_ROCM_CARD = re.compile(r"card([0-9]{1,4})")
_NUMA = re.compile(r"[0-9]{1,4}", re.ASCII)
_AMD_GPU = re.compile(r"gpu_?([0-9]{1,4})")
_AMD_KEYS = {  # in "links", and before ROCm 6.3 as objects by GPU
    Kind.WEIGHT: ("weight", "weight"),
    Kind.HOPS: ("num_hops", "hops"),
    Kind.TYPE: ("link_type", "link_type"),
    Kind.ACCESS: ("link_status", "link_accessibility"),
}


def load_json(text: str, source: str) -> Any:
    """Return the first JSON object or list of a text; warnings may stand before it.

    Raises
    ------
    ReportError
        If there is none, or it breaks.
    """
    begin = _BEGIN.search(text)
    if begin is None:
        raise ReportError(source, 0, "no JSON; expected an object or a list")
    try:
        value, _ = json.JSONDecoder().raw_decode(text, begin.start(1))
    except json.JSONDecodeError as err:
        raise ReportError(source, err.lineno, f"not JSON: {err.msg}") from err
    except (ValueError, RecursionError) as err:  # a number too long, brackets too deep
        raise ReportError(source, 0, "not JSON that a tool prints") from err
    return value


def is_rocm_json(value: object) -> bool:
    """Whether a JSON value is of ``rocm-smi``."""
    return isinstance(value, dict) and any(
        key.lower() == "system" or _ROCM_CARD.fullmatch(key.lower()) for key in value
    )


def rocm_report(value: Mapping[str, Any]) -> AmdReport:
    """Return what the JSON of ``rocm-smi --showtopo`` says; each pair stands there once."""
    by_key = {key.lower(): item for key, item in value.items() if isinstance(item, dict)}
    numa: dict[int, int] = {}
    for key, card in by_key.items():
        number = _ROCM_CARD.fullmatch(key)
        if number:
            node = str(card.get("(Topology) Numa Node", "")).strip()
            numa[int(number[1])] = int(node) if _NUMA.fullmatch(node) else -1
    pairs = [
        (_ROCM_PAIR.fullmatch(key.lower()), word) for key, word in by_key.get("system", {}).items()
    ]
    found = [(pair, word) for pair, word in pairs if pair]
    numbers = sorted({*numa, *(int(pair[at]) for pair, _ in found for at in (2, 3))})
    place = {number: at for at, number in enumerate(numbers)}
    report = AmdReport([f"GPU{number}" for number in numbers], numa=numa)
    for pair, word in found:
        kind = _ROCM_KINDS.get(pair[1]) or Kind(pair[1])
        cells = report.cells.setdefault(kind, {})
        cells[place[int(pair[2])], place[int(pair[3])]] = _cell(word)
    return report


def amd_report(value: object, complaints: Complaints) -> AmdReport:
    """Return what the JSON of ``amd-smi topology`` says.

    Raises
    ------
    ReportError
        If a GPU is without bus id or there twice, unless the read is partial.
    """
    gpus: list[Mapping[str, Any]] = []
    report = AmdReport([])
    for gpu in _amd_gpus(value):
        bus_id = bus_id_of(str(gpu.get("bdf", "")))
        if not is_bus_id(bus_id) or bus_id in report.names:
            problem = f"GPU {len(gpus)} of the list has bdf '{gpu.get('bdf', '')}'"
            complaints.add(0, f"{problem}; expected a bus id of its own")
            continue
        gpus.append(gpu)
        report.names.append(bus_id)
    place = {name: at for at, name in enumerate(report.names)}
    by_number = {str(gpu.get("gpu", at)): at for at, gpu in enumerate(gpus)}
    for low, gpu in enumerate(gpus):
        for link in _objects(gpu.get("links")):
            high = place.get(bus_id_of(str(link.get("bdf", ""))))
            for kind, (key, _) in _AMD_KEYS.items():
                if high is not None and key in link:
                    report.cells.setdefault(kind, {})[low, high] = _cell(link[key])
        for kind, (_, key) in _AMD_KEYS.items():
            for name, word in _items(gpu.get(key)):
                number = _AMD_GPU.fullmatch(name)
                if number and number[1] in by_number:
                    report.cells.setdefault(kind, {})[low, by_number[number[1]]] = _cell(word)
    return report


def _amd_gpus(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield the GPUs of a list, which newer versions put into an object."""
    if isinstance(value, dict):
        value = value.get("gpu_data")
    return (gpu for gpu in _objects(value) if "bdf" in gpu)


def _objects(value: object) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _items(value: object) -> Iterator[tuple[str, Any]]:
    return iter(value.items()) if isinstance(value, dict) else iter(())


def _cell(word: object) -> Cell:
    return Cell(str(word).strip().upper(), 0)
