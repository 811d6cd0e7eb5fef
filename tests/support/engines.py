"""Engines of ranks that are threads of this process, over the native core and without MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from support.programs import star_plan
from support.threads import run_threads

from blinkrun.assembly import assemble
from blinkrun.buffers import view
from blinkrun.communicator import Communicator
from blinkrun.engine.engine import Engine
from blinkrun.engine.handle import Handle, Part
from blinkrun.engine.request import Kind, Member, Request
from blinkrun.engine.settings import Settings
from blinkrun.types import Op


def run_engines(
    size: int,
    body: Callable[[Engine], Any],
    *,
    timeout_s: float = 20.0,
    settings: Settings | None = None,
) -> list[Any]:
    """Return what `body` returned on every rank; the first exception of any is raised."""

    def rank(communicator: Communicator) -> Any:
        made: list[Communicator] = []

        def subgroup(ranks: Sequence[int]) -> Communicator:
            control = communicator.control.sub(ranks, timeout_s=timeout_s)
            made.append(assemble(control, timeout_s=timeout_s, names=list(ranks)))
            return made[-1]

        engine = Engine(communicator, communicator.journal, subgroup, settings or Settings())
        try:
            return body(engine)
        finally:
            engine.stop()
            for each in made:
                each.close()

    return run_threads(star_plan(size), rank, timeout_s=timeout_s)


def submit(engine: Engine, *what: Any, sync: bool = False, **options: Any) -> Handle:
    """Submit what `prepare` makes; the results lie in ``handle.targets[i].owner``."""
    return engine.submit(*prepare(*what, **options), sync=sync)


def prepare(
    kind: Kind,
    name: str,
    arrays: Sequence[np.ndarray[Any, Any]],
    *,
    op: int = Op.SUM,
    root: int = -1,
    in_place: bool = False,
    splits: Sequence[int] = (),
    process_set: int = 0,
    scales: tuple[float, float] = (1.0, 1.0),
    **more: Any,
) -> tuple[Request, list[Part]]:
    """Return `arrays` as one request."""
    sources = [view(array, name) for array in arrays]
    request = Request(
        name,
        kind,
        tuple(Member(each.dtype, each.shape) for each in sources),
        op=op,
        root=root,
        process_set=process_set,
        scales=scales,
        splits=tuple(splits),
        where="script.py:1",
        **more,
    )
    return request, [_part(kind, each, in_place) for each in sources]


def allreduce(engine: Engine, name: str, array: np.ndarray[Any, Any], **options: Any) -> Any:
    """Return the allreduce of `array`, waited for at once."""
    handle = submit(engine, Kind.ALLREDUCE, name, [array], sync=True, **options)
    handle.wait()
    return handle.targets[0].owner


def _part(kind: Kind, source: Any, in_place: bool) -> Part:
    if in_place:
        return Part(source, source)
    if kind in (Kind.ALLREDUCE, Kind.BROADCAST):
        return Part(source, view(np.empty(source.shape, source.owner.dtype), "target"))
    dtype = source.owner.dtype
    return Part(source, allocate=lambda shape: view(np.empty(shape, dtype), "target"))
