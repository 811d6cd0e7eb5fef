"""Machine: what a report, a file or a probe says of one host's GPUs, NICs and wiring.

Readers turn text into a `Machine`; `model.topology_of` turns a machine into the links and shared
resources that are planned on. A machine holds what was *said*, not what it is worth: counts and
levels as printed, no bandwidths of ours. What is not stated is None or empty, never guessed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from blinkrun.errors import TopologyError


class PciKind(StrEnum):
    """What a node of the PCI tree is."""

    CPU = "cpu"  # a NUMA node: the root of a tree
    BRIDGE = "bridge"
    GPU = "gpu"
    NIC = "nic"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class PciNode:
    """A node of the PCI tree and its link to the node above.

    Attributes
    ----------
    kind : PciKind
    name : str
        The bus id, lower case (``0000:07:00.0``), or ``cpu 0``.
    parent : int
        Index of the node above in `Machine.tree`; -1 for a CPU.
    gt_per_s : float or None
        Speed of the link to the parent as stated, in GT/s; None where it is not or makes no sense
        (``link_speed=""``).
    width : int or None
        Lanes of that link; None where not stated or 0.
    numa : int or None
        Of a CPU: its NUMA node.
    vendor : str
        Of a CPU: ``intel``, ``amd``, ``arm``, ``power``, ``zhaoxin`` or empty.
    host : str
        Of a CPU: which host it belongs to where a file joins several; else empty.
    gpus, nics : tuple of int
        Indices into `Machine.gpus` and `Machine.nics` of what sits here (one GPU; a NIC may have
        several ports).
    """

    kind: PciKind
    name: str
    parent: int = -1
    gt_per_s: float | None = None
    width: int | None = None
    numa: int | None = None
    vendor: str = ""
    host: str = ""
    gpus: tuple[int, ...] = ()
    nics: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as it is named: ``GPU0`` in a matrix, its bus id where there is nothing else.

    `lanes` is how many NVLinks the report says are active, `lane_gb_per_s` their stated raw speed;
    `c2c_mb_per_s` is the link to a CPU in the same package (Grace Hopper). `arch` is NVIDIA's
    compute capability (``80``) or AMD's ISA name (``gfx908``).
    """

    name: str
    model: str = ""
    bus_id: str = ""
    uuid: str = ""
    arch: str = ""
    numa: int | None = None
    cpus: str = ""
    lanes: int | None = None
    lane_gb_per_s: float | None = None
    c2c_mb_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC: its name in the matrix or file, and the device behind it (``NIC0: mlx5_0``)."""

    name: str
    device: str = ""
    bus_id: str = ""
    numa: int | None = None
    mbit_per_s: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Wire:
    """Point-to-point or switched lanes between GPUs `low` < `high`, as stated for that pair."""

    low: int
    high: int
    lanes: int


@dataclass(frozen=True, slots=True, order=True)
class Xgmi:
    """An xGMI link of a pair; rocm-smi tells hops and weight, RCCL's files tell lanes."""

    low: int
    high: int
    lanes: int | None = None
    hops: int | None = None
    weight: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class PciPath:
    """The PCIe level of a pair as printed: PIX, PXB, PHB, NODE, SYS (old name SOC), or PCIE."""

    low: int
    high: int
    level: str
    hops: int | None = None
    weight: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class NicPath:
    """The PCIe level between a GPU and a NIC, by index, as printed."""

    gpu: int
    nic: int
    level: str


@dataclass(frozen=True, slots=True)
class NvSwitch:
    """A switch that GPUs' NVLinks lead to; `lanes` per GPU, by index."""

    name: str
    lanes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """What ``nvidia-smi nvlink --status`` says of a GPU (None: it does not say)."""

    gpu: str
    active: int
    inactive: int | None = 0
    gb_per_s: float | None = None
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine as stated.

    Attributes
    ----------
    name : str
        For people: the catalog's name, the host, or the file.
    source : str
        What was read: ``nvidia-smi topo -m``, ``NCCL topology XML``, ….
    gpus, nics : tuple
        In the order of the report. Everything else refers to them by index.
    nvlink : tuple of Wire or None
        Sorted, one per pair; None where the report does not tell pairs (``nvlink -s`` alone).
        Behind an NVSwitch every pair shows the GPU's full count: it is one budget per GPU.
    xgmi : tuple of Xgmi
    pcie : tuple of PciPath or None
        Of pairs whose PCIe level is stated: all pairs of a file, those without NVLink of a matrix.
    gpu_nic : tuple of NicPath
    p2p : tuple of (int, int, str)
        Pairs i < j and what ``topo -p2p`` prints for them (``OK``, ``GNS``, ``CNS``, …); where
        the report has several such matrices, the worst.
    switches : tuple of NvSwitch
        Named switches of a file.
    status : tuple of LinkStatus
    tree : tuple of PciNode
        The exact PCI tree of a file or of this host, parents before children; else empty.
    self_links : tuple of (int, int)
        GPUs whose NVLinks are stated to end at themselves, and how many; left out of `nvlink`.
    missing : tuple of str
        Rows that a partial read did without.
    is_identified : bool
        False where a file does not say what its devices are (they are then taken for GPUs).
    notes : tuple of str
        Warnings for people, one line each: what is odd, and what was made of it.
    """

    name: str
    source: str
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...] = ()
    nvlink: tuple[Wire, ...] | None = ()
    xgmi: tuple[Xgmi, ...] = ()
    pcie: tuple[PciPath, ...] | None = ()
    gpu_nic: tuple[NicPath, ...] = ()
    p2p: tuple[tuple[int, int, str], ...] = ()
    switches: tuple[NvSwitch, ...] = ()
    status: tuple[LinkStatus, ...] = ()
    tree: tuple[PciNode, ...] = ()
    self_links: tuple[tuple[int, int], ...] = ()
    missing: tuple[str, ...] = ()
    is_identified: bool = True
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind in ("nvlink", "xgmi", "pcie"):
            pairs = getattr(self, kind)
            if pairs is not None:
                object.__setattr__(self, kind, tuple(sorted(pairs)))
                self._check_pairs(kind, [(pair.low, pair.high) for pair in pairs])
        object.__setattr__(self, "gpu_nic", tuple(sorted(self.gpu_nic)))
        object.__setattr__(self, "p2p", tuple(sorted(self.p2p)))
        self._check_pairs("p2p", [(low, high) for low, high, _ in self.p2p])
        for wire in self.nvlink or ():
            if wire.lanes < 1:
                raise TopologyError(f"{self.name}: GPUs {wire.low}-{wire.high}: {wire.lanes} lanes")
        for path in self.gpu_nic:
            if not (0 <= path.gpu < self.num_gpus and 0 <= path.nic < len(self.nics)):
                raise TopologyError(f"{self.name}: no GPU {path.gpu} or no NIC {path.nic}")
        for at, node in enumerate(self.tree):
            if not -1 <= node.parent < at:
                raise TopologyError(f"{self.name}: {node.name} comes before what it hangs on")

    def _check_pairs(self, kind: str, pairs: Iterable[tuple[int, int]]) -> None:
        seen: set[tuple[int, int]] = set()
        for low, high in pairs:
            if not 0 <= low < high < self.num_gpus:
                raise TopologyError(
                    f"{self.name}: {kind} of GPUs {low} and {high}, there are {self.num_gpus}"
                )
            if (low, high) in seen:
                raise TopologyError(f"{self.name}: {kind} of GPUs {low} and {high} twice")
            seen.add((low, high))

    @property
    def num_gpus(self) -> int:
        """Number of GPUs."""
        return len(self.gpus)

    def with_notes(self, *notes: str) -> Machine:
        """Return the machine with more notes for people."""
        return replace(self, notes=(*self.notes, *notes))
