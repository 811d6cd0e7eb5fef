"""Which GPUs of a machine a job sees, by the variables that CUDA and ROCm read.

References
----------
.. [1] NVIDIA, "CUDA C++ Programming Guide", appendix "CUDA Environment Variables", 2024.
.. [2] AMD, "GPU isolation techniques", ROCm documentation, 2024.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from blinkrun.errors import UsageError
from blinkrun.topology.machine import Machine
from blinkrun.topology.sysfs_pci import bus_id

CUDA = "CUDA_VISIBLE_DEVICES"
CUDA_ORDER = "CUDA_DEVICE_ORDER"
HIP = "HIP_VISIBLE_DEVICES"
ROCR = "ROCR_VISIBLE_DEVICES"
_NO_GPUS: Mapping[str, int] = {}


def visible(
    machine: Machine, environ: Mapping[str, str], mig: Mapping[str, int] = _NO_GPUS
) -> tuple[int, ...]:
    """Return the GPUs that a job with these variables sees, in the order in which it sees them.

    Parameters
    ----------
    machine : Machine
        All GPUs of the host (or of the container).
    environ : mapping
        CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER for NVIDIA's GPUs. For AMD's
        ROCR_VISIBLE_DEVICES, and out of what that leaves HIP_VISIBLE_DEVICES, in whose place
        CUDA_VISIBLE_DEVICES counts as well. NVIDIA_VISIBLE_DEVICES is not read: it is for whoever
        makes a container, and has been obeyed already.
    mig : mapping of str to int, optional
        The GPU of every MIG device, by UUID.

    Returns
    -------
    tuple of int
        Indices into ``machine.gpus``. A list ends at the first entry that names no GPU, as it does
        for CUDA; nothing or -1 hides all.

    Raises
    ------
    UsageError
        If a list names a GPU twice (CUDA then shows none at all), a MIG device whose GPU is not
        known, or UUIDs or bus ids where the machine has none.

    Examples
    --------
    >>> from blinkrun.topology.machine import Gpu
    >>> gpus = tuple(Gpu(f"GPU{at}", uuid=f"GPU-{at}a") for at in range(4))
    >>> four = Machine("four", "by hand", gpus)
    >>> visible(four, {"CUDA_VISIBLE_DEVICES": "3,1"})
    (3, 1)
    >>> visible(four, {"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-9,GPU-1"})
    (2,)
    """
    gpus = tuple(range(machine.num_gpus))
    if is_amd(machine):
        variables = [ROCR, HIP if HIP in environ else CUDA]
    else:
        variables = [CUDA]
        if environ.get(CUDA_ORDER) == "PCI_BUS_ID":
            gpus = _by_bus_id(machine)
    for variable in variables:
        if variable in environ:
            gpus = _chosen(machine, gpus, variable, environ[variable], mig)
    return gpus


def visibility_notes(
    machine: Machine, environ: Mapping[str, str], mig: Mapping[str, int] = _NO_GPUS
) -> tuple[str, ...]:
    """Return lines for people: what the variables hide, and what may be meant otherwise."""
    variables = [ROCR, HIP, CUDA] if is_amd(machine) else [CUDA]
    given = [name for name in variables if name in environ]
    notes = [
        f"{name}={environ[name]}: bus ids are understood here, but not by {name[:4]}"
        for name in given
        if ":" in environ[name]
    ]
    if given:
        said = ", ".join(f"{name}={environ[name]}" for name in given)
        try:
            gpus = visible(machine, environ, mig)
        except UsageError as err:
            notes.append(str(err))
        else:
            shown = " ".join(map(str, gpus)) or "none"
            notes.append(f"{said}: a job sees of these GPUs: {shown}")
    is_mixed = len({gpu.model for gpu in machine.gpus}) > 1
    if is_mixed and not is_amd(machine) and environ.get(CUDA_ORDER) != "PCI_BUS_ID":
        notes.append(f"CUDA counts the fastest GPU first unless {CUDA_ORDER}=PCI_BUS_ID is set")
    return tuple(notes)


def is_amd(machine: Machine) -> bool:
    """Whether the GPUs are AMD's, by what the machine says of them."""
    return (
        bool(machine.xgmi)
        or any(
            gpu.arch.startswith("gfx") or re.match(r"AMD|Instinct|Radeon", gpu.model)
            for gpu in machine.gpus
        )
        or any(word in machine.source.lower() for word in ("rocm", "amd", "rccl"))
    )


def gpu_of(machine: Machine, text: str) -> int | None:
    """Return the GPU that a number, a bus id, a UUID or the start of one names, or None.

    >>> from blinkrun.topology.machine import Gpu
    >>> one = Machine("one", "by hand", (Gpu("GPU0", bus_id="0000:07:00.0", uuid="GPU-8932f937"),))
    >>> [gpu_of(one, text) for text in ("0", "07:00.0", "GPU-89", "1", "GPU-8a", "")]
    [0, 0, 0, None, None, None]
    """
    return _gpu_of(machine, tuple(range(machine.num_gpus)), text.strip())


def _chosen(
    machine: Machine, gpus: tuple[int, ...], variable: str, text: str, mig: Mapping[str, int]
) -> tuple[int, ...]:
    """Return which of `gpus` the list of a variable names, up to its first invalid entry."""
    _check_named(machine, variable, text)
    chosen: list[int] = []
    form = ""
    for entry in (part.strip() for part in text.split(",")):
        form = form or _form(entry)
        if _form(entry) != form:  # CUDA reads the whole list as its first entry
            break
        gpu = (
            _mig_parent(machine, variable, entry, mig)
            if form == "MIG"
            else _gpu_of(machine, gpus, entry)
        )
        if gpu is None:
            break
        if gpu in chosen:
            raise UsageError(f"{variable}={text} names GPU {gpu} twice; a job then sees none")
        chosen.append(gpu)
    return tuple(chosen)


def _check_named(machine: Machine, variable: str, text: str) -> None:
    """Raise UsageError if a list uses names that are not known of any GPU here."""
    for form, what, names in (
        ("GPU", "UUIDs", [gpu.uuid for gpu in machine.gpus]),
        ("bus id", "bus ids", [gpu.bus_id for gpu in machine.gpus]),
    ):
        if _form(text.strip()) == form and not any(names):
            raise UsageError(
                f"{variable}={text}: the {what} of {machine.name}'s GPUs are not known"
            )


def _form(entry: str) -> str:
    """Return how an entry names a GPU."""
    for prefix in ("GPU", "MIG"):
        if entry.startswith(f"{prefix}-"):
            return prefix
    return "bus id" if ":" in entry.partition(",")[0] else "number"


def _gpu_of(machine: Machine, gpus: Sequence[int], entry: str) -> int | None:
    """Return which of `gpus` an entry names; a number counts in their order."""
    if entry.startswith("GPU-"):
        found = [at for at in gpus if machine.gpus[at].uuid.lower().startswith(entry.lower())]
        return found[0] if len(found) == 1 else None
    if bus := bus_id(entry):
        return next((at for at in gpus if bus_id(machine.gpus[at].bus_id) == bus), None)
    digits = re.match(r"\+?(\d{1,9})", entry)  # CUDA stops at the first other sign, as atoi does
    if digits is None or int(digits[1]) >= len(gpus):
        return None
    return gpus[int(digits[1])]


def _mig_parent(machine: Machine, variable: str, entry: str, mig: Mapping[str, int]) -> int | None:
    """Return the GPU that a MIG device is a part of; older drivers have its UUID in the name."""
    if entry.startswith("MIG-GPU-"):
        uuid = entry.removeprefix("MIG-").partition("/")[0]
        return _gpu_of(machine, range(machine.num_gpus), uuid)
    known = [gpu for name, gpu in mig.items() if name.lower().startswith(entry.lower())]
    if len(known) == 1 and known[0] < machine.num_gpus:
        return known[0]
    raise UsageError(
        f"{variable}: {entry} is a part of a GPU, and nothing here tells of which;"
        " such parts have no links to each other, name whole GPUs"
    )


def _by_bus_id(machine: Machine) -> tuple[int, ...]:
    """Return the GPUs in the order of their bus ids, as far as all are known."""
    names = [bus_id(gpu.bus_id) for gpu in machine.gpus]
    if None in names:
        return tuple(range(machine.num_gpus))
    return tuple(sorted(range(machine.num_gpus), key=lambda at: _sort_key(names[at] or "")))


def _sort_key(name: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split("[:.]", name))
