"""The plan that the launcher makes for a job, before its ranks are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blinkrun.cli.parsing import parse_gpus
from blinkrun.cli.source import STANDARD_INPUT, Source, load_named
from blinkrun.errors import UsageError
from blinkrun.log import say

if TYPE_CHECKING:
    from blinkrun.topology.graph import Topology


def plan_job(name: str | None, gpus: str | None, num_ranks: int) -> tuple[str, str]:
    """Return the plan of a job for its ranks, as JSON, and for people.

    Parameters
    ----------
    name : str or None
        The machine: a file or a name of the catalog. None: the ranks share this host's memory.
    gpus : str or None
        Its GPUs by rank, as ``0,1,4``; None for the first `num_ranks`.
    num_ranks : int

    Raises
    ------
    UsageError
        If there is no such machine, its report is broken (`ReportError`), it does not have these
        GPUs or not one for every rank, links do not join them, or the folder that is named for
        plans cannot be used.
    """
    from blinkrun.planner.store import command_cache_dir, plan_of  # noqa: PLC0415 - not for errors

    folder = command_cache_dir()
    topology = _cpu_ranks(num_ranks) if name is None else _of_machine(name, gpus, num_ranks)
    plan = plan_of(topology, folder)
    return plan.to_json(), f"{_head(name, topology)}{plan.describe()}\n"


def _cpu_ranks(num_ranks: int) -> Topology:
    from blinkrun.topology.cpu import cpu_topology  # noqa: PLC0415
    from blinkrun.topology.probe import probe_host  # noqa: PLC0415

    return cpu_topology(probe_host(), num_ranks)


def _of_machine(name: str, gpus: str | None, num_ranks: int) -> Topology:
    """Return the links between the GPUs of a machine that the ranks stand for."""
    from blinkrun.cli.figures import format_gpus  # noqa: PLC0415
    from blinkrun.planner.packing import Flow  # noqa: PLC0415
    from blinkrun.planner.parts import parts  # noqa: PLC0415
    from blinkrun.topology.graph import induce  # noqa: PLC0415
    from blinkrun.topology.model import LinkSet, topology_of  # noqa: PLC0415

    if name == STANDARD_INPUT:
        raise UsageError("--topology -: the ranks read standard input; write the report to a file")
    machine = load_named(Source(name), name)
    chosen = _chosen(name, machine.num_gpus, gpus, num_ranks)
    topology = induce(topology_of(machine, LinkSet.ALL), chosen)
    apart = parts(topology, Flow.BOTH)
    if len(apart) > 1:
        groups = [f"GPU {format_gpus([topology.devices[r] for r in part])}" for part in apart]
        raise UsageError(f"{name}: no path over any link between {' and '.join(groups)}")
    for note in machine.notes:
        say(f"note: {note}")
    if gpus is None and num_ranks < machine.num_gpus:
        those = format_gpus(topology.devices)
        say(f"{name} has {machine.num_gpus} GPUs: planned for {those} (--gpus names others)")
    return topology


def _chosen(name: str, num_gpus: int, gpus: str | None, num_ranks: int) -> tuple[int, ...]:
    """Return the GPU of every rank: those that are named, else the first ones."""
    if gpus is None:
        if num_gpus < num_ranks:
            raise UsageError(f"-np {num_ranks}: {name} has only {num_gpus} GPUs, one for each rank")
        return tuple(range(num_ranks))
    chosen = parse_gpus("--gpus", gpus)
    for gpu in chosen:
        if gpu >= num_gpus:
            raise UsageError(f"--gpus {gpus}: {name} has no GPU {gpu}, only 0 to {num_gpus - 1}")
    if len(chosen) != num_ranks:
        raise UsageError(f"--gpus {gpus}: {len(chosen)} GPUs for {num_ranks} ranks (-np)")
    return chosen


def _head(name: str | None, topology: Topology) -> str:
    """Return the line that says which GPU every rank stands for."""
    if name is None:
        return ""
    gpus = " ".join(map(str, topology.devices))
    if topology.size == 1:
        return f"rank 0 is GPU {gpus} of {topology.name}\n"
    return f"ranks 0 to {topology.size - 1} are GPUs {gpus} of {topology.name}\n"
