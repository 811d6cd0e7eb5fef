"""The benchmark's peers on real ranks, and the whole command with MPI in blinkrun's place."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from mpi4py import MPI

from blinkrun.bench.libraries import UserMemory
from blinkrun.bench.main import run
from blinkrun.bench.options import parse
from blinkrun.bench.peers import Mpi, close_peers, make_peers
from blinkrun.bench.work import COLLECTIVES, REDUCING, Work, count_wrong, fill
from blinkrun.errors import UsageError
from blinkrun.types import DType, Op


class MpiControl:
    rank = MPI.COMM_WORLD.rank
    size = MPI.COMM_WORLD.size

    def barrier(self) -> None:
        MPI.COMM_WORLD.Barrier()

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        return MPI.COMM_WORLD.bcast(obj, root)

    def allgather_object(self, obj: Any) -> list[Any]:
        return MPI.COMM_WORLD.allgather(obj)


def _works(size: int) -> list[Work]:
    return [
        Work(
            collective=collective,
            dtype=dtype,
            op=op,
            root=size - 1,
            num_ranks=size,
            size_bytes=dtype.itemsize * size * 2053,
        )
        for collective in COLLECTIVES
        for dtype in DType
        for op in (Op if collective in REDUCING else [Op.SUM])
        if not (op is Op.AVERAGE and dtype is DType.BOOL)
    ]


def peer_results(peer: str) -> dict[str, int]:
    """Wrong elements of everything that `peer` does not refuse, by description."""
    control = MpiControl()
    peers = make_peers([peer], control)
    wrong = {}
    for work in _works(control.size):
        if peers[0].refuses(work) is None:
            buffers = peers[0].make_buffers(work)
            call = peers[0].make_call(work, buffers)
            fill(work, control.rank, buffers)
            call()
            name = f"{work.collective} {work.dtype.label} {work.op_label}"
            wrong[name] = count_wrong(work, control.rank, buffers)
    close_peers(peers)
    return wrong


class _InOurPlace(Mpi):
    name = "blinkrun"


def whole_command(argv: list[str]) -> dict[str, Any]:
    """What the command prints, its exit code, and its JSON file if rank 0 has written one."""
    control = MpiControl()
    try:
        options = parse(argv, control.size)
    except UsageError as err:
        return {"error": str(err)}
    peers = make_peers(options.against, control)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run(options, _InOurPlace(UserMemory()), peers, control)
    close_peers(peers)
    written = options.json if control.rank == 0 else None
    return {
        "code": code,
        "printed": printed.getvalue().splitlines(),
        "json": json.loads(Path(written).read_text()) if written else None,
    }
