"""What ``blinkrun doctor`` prints for people: this host in full, all hosts in a table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from blinkrun.cli import doctor_gpus
from blinkrun.cli.doctor_findings import Seen, mtu_of
from blinkrun.launcher.mpiexec import Mpi, identify

GIB = 1 << 30
_UNKNOWN = "-"


def report(
    everyone: Sequence[Seen],
    mpi: Mpi | None,
    *,
    problems: Sequence[str],
    notes: Sequence[str],
    script: str | None,
) -> str:
    """Return the whole text; `everyone` begins with this host."""
    parts = [_aligned(this_host(everyone[0], mpi))]
    if len(everyone) > 1:
        parts.append(_aligned(table(everyone, script)))
    parts.extend("\n".join(f"note: {line}" for line in notes) for _ in notes[:1])
    parts.extend("\n".join(f"problem: {line}" for line in problems) for _ in problems[:1])
    parts.append(verdict(len(everyone), problems))
    return "\n\n".join(parts) + "\n"


def verdict(num_hosts: int, problems: Sequence[str]) -> str:
    """Return the last line."""
    if problems:
        return f"{len(problems)} problem{'s' * (len(problems) > 1)}"
    where = "this host" if num_hosts == 1 else f"these {num_hosts} hosts"
    return f"a job can run on {where}"


def this_host(seen: Seen, mpi: Mpi | None) -> list[list[str]]:
    """Return the rows about this host: what, and how it stands."""
    facts = seen.facts or {}
    return [
        ["host", f"{facts['host']}, {facts['machine']}, Linux {facts['kernel']}"],
        ["Python", f"{facts['python']} ({facts['executable']})"],
        ["blinkrun", _blinkrun(facts)],
        ["core", _core(facts["loaded"]["core"])],
        ["MPI", "none" if mpi is None else str(mpi)],
        ["mpi4py", f"{facts['mpi4py'] or 'none'}{_library(facts['loaded']['mpi'])}"],
        ["cores", f"{_cores(facts)}, load {facts['load']:.1f}"],
        ["memory", _memory(facts)],
        ["GPUs", _gpus(facts["gpus"])],
        *([["", doctor_gpus.summary(facts["devices"])]] if "devices" in facts else []),
        ["frameworks", _frameworks(facts["frameworks"])],
        *(
            ["network" if at == 0 else "", line]
            for at, line in enumerate(_interfaces(facts["interfaces"]))
        ),
        ["clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(facts["time"]))],
    ]


def table(everyone: Sequence[Seen], script: str | None) -> list[list[str]]:
    """Return a row for each host under a head."""
    head = ["host", "Python", "blinkrun", "MPI", "mpi4py", "threads", "cores", "memory", "load"]
    head += ["clock", "network"] + (["script"] if script is not None else [])
    return [head, *(_row(seen, script, len(head)) for seen in everyone)]


def _row(seen: Seen, script: str | None, width: int) -> list[str]:
    facts = seen.facts
    if facts is None:
        return [seen.host, "not reached", *[""] * (width - 2)]
    here = facts["blinkrun"]
    row = [
        seen.host,
        facts["python"],
        _UNKNOWN if here is None else here["version"],
        _mpi(facts["mpiexec"]),
        facts["mpi4py"] or _UNKNOWN,
        facts["loaded"]["mpi"].get("threads", _UNKNOWN).lower(),
        _cores(facts),
        f"{facts['memory']['total'] / GIB:.1f} GiB",
        f"{facts['load']:.1f}",
        "" if seen.clock_s is None else f"{seen.clock_s:+.3f} s",
        _way(seen),
    ]
    return row if script is None else [*row, (facts["files"].get(script) or "missing")[:8]]


def _mpi(found: Mapping[str, Any] | None) -> str:
    there = identify(found["text"]) if found is not None and found["text"] else None
    return _UNKNOWN if there is None else f"{there[0].title} {there[1]}"


def _way(seen: Seen) -> str:
    if not seen.address:
        return "" if seen.is_this else "no way back"
    mtu = mtu_of(seen)
    return seen.address if mtu is None else f"{seen.address} mtu {mtu}"


def _blinkrun(facts: Mapping[str, Any]) -> str:
    here = facts["blinkrun"]
    return "none" if here is None else f"{here['version']} ({here['folder']})"


def _core(core: Mapping[str, str]) -> str:
    return f"cannot be loaded: {core['error']}" if "error" in core else f"{core['isa']} kernels"


def _library(mpi: Mapping[str, str]) -> str:
    if "error" in mpi:
        return f", loads no MPI: {mpi['error']}"
    name = " ".join(mpi["library"].partition(",")[0].replace("Version:", " ").split())
    return f", loads {name} with MPI_THREAD_{mpi['threads']}"


def _cores(facts: Mapping[str, Any]) -> str:
    if facts["quota"] is None or facts["quota"] >= facts["cores"]:
        return str(facts["cores"])
    return f"{facts['quota']:g} of {facts['cores']}"


def _memory(facts: Mapping[str, Any]) -> str:
    total, free = facts["memory"]["total"] / GIB, facts["memory"]["free"] / GIB
    shm = facts["shared"]["shm"]
    said = "no /dev/shm" if shm is None else f"/dev/shm {shm / GIB:.1f} GiB"
    memfd = "memfd" if facts["shared"]["memfd"] else "no memfd"
    return f"{total:.1f} GiB, {free:.1f} free; {said}; {memfd}"


def _gpus(found: Mapping[str, Any]) -> str:
    drivers = []
    if found["nvidia_driver"]:
        drivers.append(f"NVIDIA driver {found['nvidia_driver']}")
    if found["amd_driver"]:
        drivers.append("AMD driver")
    readers = [f"nvidia-ml-py {found['nvml']}" if found["nvml"] else "", *found["tools"]]
    read = ", ".join(filter(None, readers)) or "no library or tool"
    return f"{' and '.join(drivers) or 'no driver'}; {read} to read them with"


def _frameworks(found: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items() if value) or "none"


def _interfaces(found: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for each in found:
        addresses = " ".join(each["addresses"]) or "no address"
        state = "" if each["up"] else ", down"
        lines.append(f"{each['name']} {addresses} mtu {each['mtu']}{state}")
    return lines or ["nothing but the loopback"]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    from blinkrun.topology.render import align  # noqa: PLC0415 - most of it is not for this

    return align([list(row) for row in rows])
