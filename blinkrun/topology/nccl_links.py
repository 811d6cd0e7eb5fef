"""The NVLinks and xGMI links of a topology file, from what each GPU says to pairs of GPUs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from blinkrun.topology.machine import NvSwitch, PciKind, Wire, Xgmi
from blinkrun.topology.nccl_tree import FabricLink, FoundGpu, Scan

_SWITCH_CLASS = "0680"  # NVSwitch: "other bridge"
_NPU_CLASS = "068001"  # the NVLink bridge of a POWER9 processor
_GPU_CLASSES = ("03", "12")


@dataclass(slots=True)
class Fabric:
    """What the links of a file come to.

    Attributes
    ----------
    nvlink, xgmi, switches, self_links
        As in `Machine`.
    notes : list of str
        What is odd about them.
    """

    nvlink: tuple[Wire, ...] = ()
    xgmi: tuple[Xgmi, ...] = ()
    switches: tuple[NvSwitch, ...] = ()
    self_links: tuple[tuple[int, int], ...] = ()
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Stated:
    """Counts as stated: by pair and direction, by switch and GPU, by GPU."""

    direct: dict[str, Counter[tuple[int, int]]]
    switched: dict[tuple[str, str], Counter[int]]
    selves: Counter[int]
    to_cpus: Counter[int]
    outside: Counter[int]


def fabric_of(scan: Scan, gpus: Sequence[FoundGpu], names: Sequence[str]) -> Fabric:
    """Return the links between `gpus`, which are called `names`.

    A link to an NVSwitch is part of one budget per GPU: two GPUs that share a switch show all
    lanes that they have to switches, the fewer of the two.

    Raises
    ------
    ReportError
        If a link leads to what cannot have one, unless the read is partial.
    """
    stated = _count(scan, gpus)
    fabric = Fabric()
    nvlink = _pairs(stated.direct["nvlink"], names, fabric.notes)
    xgmi = _pairs(stated.direct["xgmi"], names, fabric.notes)
    for pair, lanes in _switched_pairs(stated.switched, len(gpus)).items():
        nvlink[pair] = nvlink.get(pair, 0) + lanes
    fabric.nvlink = tuple(Wire(*pair, lanes) for pair, lanes in sorted(nvlink.items()))
    fabric.xgmi = tuple(Xgmi(*pair, lanes=lanes) for pair, lanes in sorted(xgmi.items()))
    fabric.switches = tuple(
        NvSwitch(name, tuple(lanes[gpu] for gpu in range(len(gpus))))
        for (_, name), lanes in sorted(stated.switched.items())
    )
    fabric.self_links = tuple(sorted(stated.selves.items()))
    fabric.notes += _remarks(stated, names)
    return fabric


def _count(scan: Scan, gpus: Sequence[FoundGpu]) -> _Stated:
    stated = _Stated({"nvlink": Counter(), "xgmi": Counter()}, {}, Counter(), Counter(), Counter())
    index = {(gpu.host, gpu.bus_id): at for at, gpu in enumerate(gpus)}
    anywhere: defaultdict[str, list[int]] = defaultdict(list)
    for at, gpu in enumerate(gpus):
        anywhere[gpu.bus_id].append(at)
    for at, gpu in enumerate(gpus):
        for link in gpu.links or ():
            peers = [index[gpu.host, link.target]] if (gpu.host, link.target) in index else []
            peers = peers or anywhere.get(link.target, [])
            if len(peers) == 1 and peers[0] == at:
                stated.selves[at] += link.count
            elif len(peers) == 1:
                stated.direct[link.tag][at, peers[0]] += link.count
            else:
                _count_other(scan, stated, at, gpu, link)
    return stated


def _count_other(scan: Scan, stated: _Stated, at: int, gpu: FoundGpu, link: FabricLink) -> None:
    """Count a link to what is no GPU of the file."""
    node = scan.at.get((gpu.host, link.target))
    digits = link.target_class or ("" if node is None else scan.classes.get(node, ""))
    if digits == _NPU_CLASS:
        stated.to_cpus[at] += link.count
    elif digits.startswith(_SWITCH_CLASS):
        # a real switch belongs to its host; the placeholder is one fabric for all hosts
        host = "" if set(link.target) <= {"f", ":", "."} else gpu.host
        stated.switched.setdefault((host, link.target), Counter())[at] += link.count
    elif node is None and digits.startswith(_GPU_CLASSES):
        stated.outside[at] += link.count
    else:
        kind = "not in the file" if node is None else f"a {scan.nodes[node].kind}"
        if node is not None and scan.nodes[node].kind is PciKind.OTHER:
            kind = "another device"
        scan.complaints.add(
            link.line,
            f"{link.tag} leads to {link.target}, which is {kind}; expected a GPU or an NVSwitch",
        )


def _pairs(
    directed: Counter[tuple[int, int]], names: Sequence[str], notes: list[str]
) -> dict[tuple[int, int], int]:
    """Return the lanes of every pair: the fewer where its GPUs do not agree."""
    pairs = {}
    for low, high in sorted({(min(pair), max(pair)) for pair in directed}):
        there, back = directed[low, high], directed[high, low]
        if there != back:
            notes.append(
                f"{names[low]} states {there} lanes to {names[high]}, which states {back}; taken: "
                + (f"{min(there, back)}" if there and back else f"{max(there, back)}")
            )
        pairs[low, high] = min(there, back) or max(there, back)
    return pairs


def _switched_pairs(
    switched: dict[tuple[str, str], Counter[int]], num_gpus: int
) -> dict[tuple[int, int], int]:
    """Return the lanes of every pair of GPUs that have a switch in common."""
    lanes: Counter[int] = Counter()
    for counts in switched.values():
        lanes.update(counts)
    reach = [{key for key, counts in switched.items() if counts[gpu]} for gpu in range(num_gpus)]
    return {
        (low, high): min(lanes[low], lanes[high])
        for low, high in combinations(range(num_gpus), 2)
        if reach[low] & reach[high]
    }


def _remarks(stated: _Stated, names: Sequence[str]) -> list[str]:
    """Return notes on links that are no links between two GPUs of the file."""
    remarks = []
    for counts, where in (
        (stated.selves, "end at the GPU itself and are left out"),
        (stated.to_cpus, "lead to a CPU"),
        (stated.outside, "lead to GPUs that are not in the file"),
    ):
        if counts:
            who = ", ".join(f"{names[gpu]}: {count}" for gpu, count in sorted(counts.items()))
            remarks.append(f"links that {where}: {who}")
    return remarks
