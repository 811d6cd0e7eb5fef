"""Chooses the GPU of this rank, together with the other ranks of its host."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from blinkrun.errors import LaunchError, UsageError
from blinkrun.executors.device_plan import probe

if TYPE_CHECKING:
    from blinkrun.comm.base import ControlPlane
    from blinkrun.comm.world import World
    from blinkrun.topology.machine import Gpu, Machine


@dataclass(frozen=True, slots=True)
class Sight:
    """The GPUs that this process sees: their names, equal on all ranks of a host, in its order."""

    machine: Machine | None
    names: tuple[str, ...]


def sight(environ: Mapping[str, str] = os.environ) -> Sight:
    """Return the GPUs that this process may use.

    Raises
    ------
    UsageError
        If CUDA_VISIBLE_DEVICES cannot be understood.
    """
    from blinkrun.topology.visible import CUDA, visible  # noqa: PLC0415 - only with GPUs

    machine = probe()
    part = environ.get(CUDA, "").partition(",")[0].strip()
    if part.startswith("MIG-"):  # CUDA shows a process one part of a GPU at most
        return Sight(machine, (part,))
    if machine is None:
        return Sight(None, ())
    return Sight(machine, tuple(_name(machine.gpus[at]) for at in visible(machine, environ)))


def choose(control: ControlPlane, world: World, per_rank: Fraction) -> int:
    """Return the device of this rank, as an index into those that its process sees.

    Collective over all ranks of `control`. The first rank of each host chooses for all on it.

    Raises
    ------
    LaunchError
        If there are too few GPUs, the same on all ranks of that host.
    """
    try:
        here, problem = sight(), ""
    except UsageError as err:
        here, problem = Sight(None, ()), str(err)
    everyone = control.allgather((here.names, problem))
    own = [everyone[rank] for rank in world.local_ranks]
    chosen: tuple[int, ...] | str = ""
    if world.local_rank == 0:
        chosen = _chosen(here.machine, own, per_rank)
    answer = control.allgather(chosen)[world.local_ranks[0]]
    if isinstance(answer, str):
        raise LaunchError(answer)
    return int(answer[world.local_rank])


def _chosen(
    machine: Machine | None, own: Sequence[tuple[tuple[str, ...], str]], per_rank: Fraction
) -> tuple[int, ...] | str:
    """Return the devices of this host's ranks, or why there are none."""
    from blinkrun.planner.device_choice import choose_devices  # noqa: PLC0415

    problem = next((f"local rank {at}: {text}" for at, (_, text) in enumerate(own) if text), "")
    if problem:
        return problem
    try:
        return choose_devices(
            [names for names, _ in own],
            per_rank,
            lambda names, count: best_first(machine, names, count),
        )
    except LaunchError as err:
        return str(err)


def best_first(machine: Machine | None, names: Sequence[str], count: int) -> Sequence[str]:
    """Return which `count` of the GPUs of these names to take; the first ones without links."""
    from blinkrun.planner.device_choice import best_gpus  # noqa: PLC0415

    index = {} if machine is None else {_name(gpu): at for at, gpu in enumerate(machine.gpus)}
    if machine is None or not set(names) <= set(index):
        return names[:count]
    chosen = best_gpus(machine, [index[name] for name in names], count)
    return [name for name in names if index[name] in chosen]


def _name(gpu: Gpu) -> str:
    return gpu.bus_id or gpu.uuid or gpu.name
