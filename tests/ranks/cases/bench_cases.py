"""The benchmark's peers on real ranks, and the whole command."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from mpi4py import MPI

from blinkrun.bench.main import main
from blinkrun.bench.peers import close_peers, make_peers
from blinkrun.bench.work import COLLECTIVES, REDUCING, Work, count_wrong, fill
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


def whole_command(argv: list[str], results: str | None = None) -> dict[str, Any]:
    """What ``bench`` prints on this rank, its exit code, and on rank 0 its JSON file."""
    said, talked = io.StringIO(), io.StringIO()
    extra = ["--json", results] if results else []
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(talked):
        code = main([*argv, *extra])
    is_first = MPI.COMM_WORLD.rank == 0
    return {
        "code": code,
        "said": said.getvalue().splitlines(),
        "talked": talked.getvalue().splitlines(),
        "json": json.loads(Path(results).read_text()) if results and is_first else None,
    }


def whole_commands(argvs: list[list[str]]) -> list[dict[str, Any]]:
    """The same of several commands, one after the other: a launch takes longer than they do."""
    return [whole_command(argv) for argv in argvs]
