"""What the vendors' command-line tools tell of this host's GPUs.

A tool is asked through ``run(argv)``, which returns what it prints, or None if it is missing,
fails or hangs. Any answer may be missing; what the others tell is used.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from blinkrun.errors import ReportError
from blinkrun.topology.machine import Gpu, Machine
from blinkrun.topology.sysfs_pci import bus_id

Run = Callable[[Sequence[str]], str | None]

_NVIDIA_LIST = ("nvidia-smi", "--query-gpu=index,pci.bus_id,uuid,name", "--format=csv,noheader")
_NVIDIA_NAMES = ("nvidia-smi", "-L")
_NVIDIA_REPORTS = (
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "nvlink", "-s"),
    ("nvidia-smi", "topo", "-p2p", "rw"),
)
_AMD_TOPOLOGY = ("amd-smi", "topology", "--json")
_ROCM_TOPOLOGY = ("rocm-smi", "--showtopo")
_ROCM_BUS = ("rocm-smi", "--showbus", "--json")


def read_nvidia_tools(run: Run, name: str) -> Machine | None:
    """Return the GPUs that ``nvidia-smi`` shows and how they are joined, or None."""
    listed = _listed(run)
    texts = [run(report) for report in _NVIDIA_REPORTS]
    text = "\n\n".join(text for text in texts if text)
    machine, problem = _read(_nvidia_smi, text, " ".join(_NVIDIA_REPORTS[0]))
    if machine is not None and machine.num_gpus >= len(listed):
        return replace(_with_listed(machine, listed), name=name)
    if machine is not None:
        problem = f"the matrix has {machine.num_gpus} of {len(listed)} GPUs"
    if not listed:
        return None
    return Machine(
        name,
        "nvidia-smi",
        listed,
        pcie=None,
        notes=(f"how the GPUs are joined is not told: {problem}",),
    )


def read_amd_tools(run: Run, name: str) -> Machine | None:
    """Return the GPUs that ``amd-smi`` or ``rocm-smi`` shows and how they are joined, or None."""
    machine, _ = _read(_amd_smi, run(_AMD_TOPOLOGY), " ".join(_AMD_TOPOLOGY))
    if machine is None:
        machine, _ = _read(_rocm_smi, run(_ROCM_TOPOLOGY), " ".join(_ROCM_TOPOLOGY))
    if machine is None:
        return None
    if not all(gpu.bus_id for gpu in machine.gpus):
        machine = _with_listed(machine, _rocm_listed(run(_ROCM_BUS) or ""))
    return replace(machine, name=name)


def mig_parents(text: str) -> dict[str, int]:
    r"""Return the GPU of every MIG device in what ``nvidia-smi -L`` prints, by UUID.

    >>> mig_parents("GPU 1: A100 (UUID: GPU-2)\n  MIG 1g.5gb Device 0: (UUID: MIG-7)\n")
    {'MIG-7': 1}
    """
    parents = {}
    index = -1
    for line in text.splitlines():
        head, _, rest = line.strip().partition(" ")
        if head == "GPU":
            number = rest.partition(":")[0]
            index = int(number) if number.isdigit() else -1
        elif head == "MIG" and index >= 0:
            parents[_in_brackets(line)] = index
    return parents


def _read(
    reader: Callable[[str, str], Machine], text: str | None, source: str
) -> tuple[Machine | None, str]:
    """Return what a reader makes of a tool's text, else why it makes nothing of it."""
    if not text or not text.strip():
        return None, f"{source} prints nothing"
    try:
        machine = reader(text, source)
    except ReportError as err:
        return None, err.problem
    return (machine, "") if machine.gpus else (None, f"{source} shows no GPU")


# The readers are loaded where there is something to read, which is on few hosts.


def _nvidia_smi(text: str, source: str) -> Machine:
    from blinkrun.topology.nvidia_smi import read_nvidia_smi  # noqa: PLC0415

    return read_nvidia_smi(text, source, partial=True)


def _amd_smi(text: str, source: str) -> Machine:
    from blinkrun.topology.amd_smi import read_amd_smi  # noqa: PLC0415

    return read_amd_smi(text, source, partial=True)


def _rocm_smi(text: str, source: str) -> Machine:
    from blinkrun.topology.rocm_smi import read_rocm_smi  # noqa: PLC0415

    return read_rocm_smi(text, source, partial=True)


def _listed(run: Run) -> tuple[Gpu, ...]:
    """Return the GPUs with bus id and UUID, in nvidia-smi's order."""
    rows = csv.reader((run(_NVIDIA_LIST) or "").splitlines(), skipinitialspace=True)
    gpus = [
        Gpu(f"GPU{row[0].strip()}", row[3].strip(), bus_id(row[1]) or "", row[2].strip())
        for row in rows
        if len(row) == 4 and row[0].strip().isdigit()
    ]
    if gpus:
        return tuple(gpus)
    return tuple(
        Gpu(head.replace(" ", ""), rest.rpartition(" (UUID:")[0].strip(), uuid=_in_brackets(rest))
        for line in (run(_NVIDIA_NAMES) or "").splitlines()
        for head, found, rest in [line.partition(":")]
        if found and head.startswith("GPU ") and head[4:].isdigit()
    )


def _in_brackets(line: str) -> str:
    """Return the UUID at the end of a line of ``nvidia-smi -L``."""
    return line.rpartition("UUID:")[2].strip().rstrip(")")


def _rocm_listed(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs of ``rocm-smi --showbus --json``, in its order."""
    try:
        data = json.loads(text)
        cards = {int(card.removeprefix("card")): facts["PCI Bus"] for card, facts in data.items()}
        return tuple(Gpu(f"GPU{at}", bus_id=bus_id(cards[at]) or "") for at in sorted(cards))
    except (ValueError, LookupError, TypeError, AttributeError):
        return ()


def _with_listed(machine: Machine, listed: Sequence[Gpu]) -> Machine:
    """Return the machine with what a list of its GPUs adds, if it is a list of the same GPUs."""
    if len(listed) != machine.num_gpus:
        return machine
    gpus = tuple(
        replace(
            gpu,
            model=gpu.model or other.model,
            bus_id=bus_id(gpu.bus_id) or other.bus_id,
            uuid=gpu.uuid or other.uuid,
        )
        for gpu, other in zip(machine.gpus, listed, strict=True)
    )
    return replace(machine, gpus=gpus)
