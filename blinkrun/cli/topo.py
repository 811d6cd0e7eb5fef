"""``blinkrun topo``: a machine as text, as JSON, as NCCL's XML and as a picture."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blinkrun.cli.output import emit, json_text
from blinkrun.cli.topo_options import TopoOptions, make_parser, parse
from blinkrun.errors import ReportError, UsageError

if TYPE_CHECKING:
    from blinkrun.cli.subject import Subject
    from blinkrun.topology.cpu import Host
    from blinkrun.topology.machine import Machine

_WIDTH = 86  # of lines that can be wrapped
# What reads and draws is imported where it is needed: the help must come at once.


def main(argv: Sequence[str]) -> int:
    """Carry out ``blinkrun topo argv`` and return its exit code.

    Raises
    ------
    UsageError
        If it cannot be carried out, with one line for the user.
    """
    try:
        options = parse(argv)
        if options is None:
            return emit(make_parser().format_help())
        return emit(_catalog() if options.form == "list" else _show(options))
    except ReportError:
        raise  # it says itself where it is
    except UsageError as err:
        raise UsageError(f"topo: {err}") from err


def _catalog() -> str:
    """Return the catalog's names, each with what it is called elsewhere and what it is."""
    from blinkrun.topology.catalog import aliases, described, machines  # noqa: PLC0415
    from blinkrun.topology.render import align  # noqa: PLC0415

    others: dict[str, list[str]] = {}
    for alias, name in aliases().items():
        others.setdefault(name, []).append(alias)
    rows = [[name, summary(described(name)), " ".join(others.get(name, []))] for name in machines()]
    return align(rows) + "\n"


def _show(options: TopoOptions) -> str:
    """Return what is to be printed, after the picture is drawn."""
    from blinkrun.cli.subject import subject_of  # noqa: PLC0415
    from blinkrun.topology.machine import Machine  # noqa: PLC0415

    subject = subject_of(options.source)
    if not isinstance(subject.found, Machine):
        if options.ranks is not None:
            raise UsageError("--ranks says which GPUs ranks take, there is none here; name a file")
        return _host(subject.found, options)
    machine = subject.found
    if options.plot is not None:
        _draw(subject, machine, options.plot)
    if options.form == "xml":
        from blinkrun.topology.nccl_xml_out import write_nccl_xml  # noqa: PLC0415

        return write_nccl_xml(machine)
    taken = _taken(subject, machine, options)
    if options.form == "json":
        return json_text(topo_json(subject, machine) | ({} if taken is None else {"ranks": taken}))
    return topo_text(subject, machine, taken)


def _taken(subject: Subject, machine: Machine, options: TopoOptions) -> list[int] | None:
    """Return the GPU of every rank; None for a machine elsewhere, unless it is asked for."""
    from blinkrun.planner.device_choice import best_gpus  # noqa: PLC0415

    count = options.ranks
    if count is None:
        return list(subject.usual) if options.source.name is None else None
    if count > len(subject.usual):
        raise UsageError(f"--ranks {count}: {subject.name} has {subject.named(subject.usual)}")
    return list(best_gpus(machine, subject.usual, count))


def _host(host: Host, options: TopoOptions) -> str:
    """Return what there is to say of a host without GPUs."""
    if options.plot is not None or options.form == "xml":
        what = "--xml writes" if options.form == "xml" else "--plot draws"
        raise UsageError(f"{what} GPUs, there is none here; name a machine or a file")
    if options.form == "json":
        cpus = [[cpu.cpu, cpu.core, cpu.socket, cpu.numa] for cpu in host.cpus]
        facts: dict[str, Any] = {"gpu_names": [], "nics": [], "nvlink": [], "pcie": {}, "xgmi": []}
        return json_text(facts | {"cpus": cpus, "is_complete": host.complete})
    return f"no GPU here; {host.describe()}\n"


def topo_json(subject: Subject, machine: Machine) -> dict[str, Any]:
    """Return all that is known of a machine: what it states, and what was made of it."""
    from blinkrun.topology.fabric import fabric_of  # noqa: PLC0415
    from blinkrun.topology.serialize import machine_json  # noqa: PLC0415

    fabric = fabric_of(machine)
    return machine_json(machine) | {
        "fabric": {
            "kind": fabric.kind.value,
            "generation": fabric.generation,
            "lanes": list(fabric.lanes),
            "lane_gb_per_s": subject.lane_mb_per_s / 1000,
            "islands": [list(island) for island in fabric.islands],
        },
        "fingerprint": _fingerprint(subject),
    }


def topo_text(subject: Subject, machine: Machine, taken: Sequence[int] | None = None) -> str:
    """Return a machine for people, with the GPU that each rank takes, if that is given."""
    from blinkrun.topology import render  # noqa: PLC0415
    from blinkrun.topology.pcie_tree import pcie_tree  # noqa: PLC0415

    parts = [f"{machine.name}: {summary(machine)} ({machine.source})"]
    if machine.gpus:
        parts.append(render.matrix(machine))
        parts.append(f"PCIe\n{render.tree_text(machine, pcie_tree(machine))}")
    said = {
        "fabric": [_fabric(subject, machine)],
        "NVLinks": render.statuses(machine),
        "NICs": render.nearest_nics(machine),
        "names": render.names(machine),
        "GB/s": _rates(subject),
        "fingerprint": [_fingerprint(subject) or "none, as links are not stated"],
        "ranks": [] if taken is None else [_ranks(taken)],
    }
    rows = [
        [name if at == 0 else "", line]
        for name, lines in said.items()
        for at, line in enumerate(lines)
    ]
    parts.append(render.align(rows))
    return "\n\n".join(parts) + "\n"


def _fabric(subject: Subject, machine: Machine) -> str:
    from blinkrun.topology.fabric import fabric_of  # noqa: PLC0415
    from blinkrun.topology.render import fabric_text  # noqa: PLC0415

    if machine.nvlink is None and not machine.xgmi:
        return "not stated"
    return fabric_text(fabric_of(machine), subject.lane_mb_per_s)


def _ranks(taken: Sequence[int]) -> str:
    if len(taken) == 1:
        return f"rank 0 takes GPU {taken[0]}"
    return f"0 to {len(taken) - 1} of a host take GPUs {' '.join(map(str, taken))}, in this order"


def _rates(subject: Subject) -> list[str]:
    """Return what each link is taken to achieve, those that are alike together."""
    from blinkrun.cli.figures import format_rate, resource_names  # noqa: PLC0415
    from blinkrun.topology.model import LinkSet  # noqa: PLC0415

    try:
        resources = subject.topology(LinkSet.ALL).resources
    except UsageError:
        return []
    groups: dict[tuple[str, int], list[str]] = {}
    for resource in resources:
        pattern = re.sub(r"[0-9]+", "#", resource.name)
        groups.setdefault((pattern, resource.capacity), []).append(resource.name)
    lines = []
    for (_, capacity), members in groups.items():
        head = f"{format_rate(capacity / 1000):>5}  "
        lines += textwrap.wrap(
            head + resource_names(members), _WIDTH, subsequent_indent=" " * len(head)
        )
    return lines


def summary(machine: Machine) -> str:
    """Return how many of what GPUs a machine has."""
    models: dict[str, int] = {}
    for gpu in machine.gpus:
        models[gpu.model] = models.get(gpu.model, 0) + 1
    parts = [
        f"{count} x {model}" if model else f"{count} GPU{'s' if count > 1 else ''}"
        for model, count in models.items()
    ]
    if machine.nics:
        parts.append(f"{len(machine.nics)} NIC{'s' if len(machine.nics) > 1 else ''}")
    return ", ".join(parts) or "no GPU"


def _fingerprint(subject: Subject) -> str | None:
    """Return the same 16 digits for every numbering of the GPUs; None if links are not stated."""
    from blinkrun.topology.fingerprint import fingerprint  # noqa: PLC0415
    from blinkrun.topology.model import LinkSet  # noqa: PLC0415

    try:
        return fingerprint(subject.topology(LinkSet.ALL))
    except UsageError:
        return None


def _draw(subject: Subject, machine: Machine, path: Path) -> None:
    from blinkrun.cli.plot_topology import draw_topology  # noqa: PLC0415
    from blinkrun.topology.fabric import fabric_of  # noqa: PLC0415
    from blinkrun.topology.pcie_tree import pcie_tree  # noqa: PLC0415

    fabric = fabric_of(machine)
    lines = (
        f"{machine.name}: {summary(machine)}",
        _fabric(subject, machine),
    )
    draw_topology(machine, fabric, pcie_tree(machine), lines, path)
