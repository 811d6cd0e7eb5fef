"""The libraries that blinkrun is measured against: MPI through mpi4py, gloo through torch.

Each peer gets the form of the call that costs it least: buffers described beforehand, in place.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from blinkrun.bench.libraries import Call, Control, Library, UserMemory
from blinkrun.bench.work import REDUCING, Array, Buffers, Work
from blinkrun.types import DType, Op


class Mpi:
    """MPI's own collectives on the world communicator."""

    name = "mpi"

    def __init__(self, memory: UserMemory) -> None:
        from mpi4py import MPI  # noqa: PLC0415  (only where this peer is asked for)

        self._mpi = MPI
        self._memory = memory

    def refuses(self, work: Work) -> str | None:
        """Refuse what MPI has no type or operation for."""
        if work.dtype is DType.BFLOAT16:
            return "mpi has no bfloat16"
        if work.dtype is DType.FLOAT16 and not self._maps_float16():
            return "this mpi4py has no float16"
        if work.collective in REDUCING and work.op is Op.AVERAGE:
            return "mpi has no average"
        return None

    def _maps_float16(self) -> bool:
        """Whether numpy's float16 is known: a type of MPI 4.1's that mpi4py has since 4.1.1."""
        try:
            self._mpi.COMM_SELF.Allreduce(self._mpi.IN_PLACE, np.zeros(1, np.float16))
        except (KeyError, self._mpi.Exception):
            return False
        return True

    def make_buffers(self, work: Work) -> Buffers:
        """Return ordinary memory."""
        return self._memory.buffers(work)

    def make_call(self, work: Work, buffers: Buffers) -> Call:
        """Return the call with its buffers and operation looked up."""
        mpi, world = self._mpi, self._mpi.COMM_WORLD
        send = self._describe(buffers.send, work.dtype)
        recv = self._describe(buffers.recv, work.dtype)
        is_root = world.rank == work.root
        given, got = (mpi.IN_PLACE, send) if is_root else (send, None)
        op = self._op(work)
        calls: dict[str, Call] = {
            "allreduce": partial(world.Allreduce, mpi.IN_PLACE, send, op),
            "broadcast": partial(world.Bcast, send, work.root),
            "reduce": partial(world.Reduce, given, got, op, work.root),
            "allgather": partial(world.Allgather, send, recv),
            "reducescatter": partial(world.Reduce_scatter_block, send, recv, op),
            "alltoall": partial(world.Alltoall, send, recv),
        }
        return calls[work.collective]

    def _describe(self, array: Array, dtype: DType) -> Any:
        """Name the type where the standard has one: looking it up is a tenth of a small call."""
        name = {
            DType.INT32: "INT32_T",
            DType.INT64: "INT64_T",
            DType.FLOAT32: "FLOAT",
            DType.FLOAT64: "DOUBLE",
        }.get(dtype)
        return array if name is None else [array, getattr(self._mpi, name)]

    def _op(self, work: Work) -> Any:
        mpi = self._mpi
        if work.dtype is DType.BOOL:
            return mpi.LAND if work.op in (Op.MIN, Op.PRODUCT) else mpi.LOR
        ops = {Op.SUM: mpi.SUM, Op.MIN: mpi.MIN, Op.MAX: mpi.MAX, Op.PRODUCT: mpi.PROD}
        return ops.get(work.op, mpi.SUM)


class Gloo:
    """torch.distributed over gloo; the group is made when the peer is, by all ranks together."""

    name = "gloo"

    def __init__(self, memory: UserMemory, control: Control) -> None:
        import torch.distributed as dist  # noqa: PLC0415  (only where this peer is asked for)

        self._dist = dist
        self._memory = memory
        self._control = control
        self._file: Path | None = None
        several = len(set(control.allgather_object(platform.node()))) > 1
        store = self._over_tcp() if several else self._by_file()
        dist.init_process_group("gloo", store=store, rank=control.rank, world_size=control.size)

    def _by_file(self) -> Any:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # ranks of one host
        folder = tempfile.mkdtemp(prefix="blinkrun-gloo-") if self._control.rank == 0 else ""
        self._file = Path(self._control.broadcast_object(folder)) / "store"  # later groups too
        return self._dist.FileStore(str(self._file), self._control.size)

    def _over_tcp(self) -> Any:
        """Return a store at the first rank, under the name that its host has for others."""
        name, port = os.environ.get("MASTER_ADDR") or platform.node(), 0
        is_first = self._control.rank == 0
        if is_first:
            first = self._dist.TCPStore(name, 0, is_master=True, wait_for_workers=False)
            port = first.port
        name, port = self._control.broadcast_object((name, port))
        return first if is_first else self._dist.TCPStore(name, port, is_master=False)

    def refuses(self, work: Work) -> str | None:
        """Refuse what gloo does not implement."""
        if work.dtype is DType.BOOL and work.collective in REDUCING:
            return "gloo does not reduce bool"
        if work.op is Op.AVERAGE and work.collective in REDUCING:
            return "gloo has no average"
        return None

    def make_buffers(self, work: Work) -> Buffers:
        """Return ordinary memory."""
        return self._memory.buffers(work)

    def make_call(self, work: Work, buffers: Buffers) -> Call:
        """Return the call on tensors that share the buffers' memory."""
        dist = self._dist
        send, recv = (_as_tensor(array, work.dtype) for array in (buffers.send, buffers.recv))
        op = {
            Op.MIN: dist.ReduceOp.MIN,
            Op.MAX: dist.ReduceOp.MAX,
            Op.PRODUCT: dist.ReduceOp.PRODUCT,
        }
        chosen = op.get(work.op, dist.ReduceOp.SUM)
        # torch renames the two below; the old names warn.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        calls: dict[str, Call] = {
            "allreduce": partial(dist.all_reduce, send, chosen),
            "broadcast": partial(dist.broadcast, send, work.root),
            "reduce": partial(dist.reduce, send, work.root, chosen),
            "allgather": partial(gather, recv, send),
            "reducescatter": partial(scatter, recv, send, chosen),
            "alltoall": partial(dist.all_to_all_single, recv, send),
        }
        return calls[work.collective]

    def close(self) -> None:
        """Leave the group; gloo ends in a crash where one rank leaves without it."""
        self._control.barrier()
        self._dist.destroy_process_group()
        self._control.barrier()
        if self._file is not None and self._control.rank == 0:
            self._file.unlink(missing_ok=True)
            self._file.parent.rmdir()


def _as_tensor(array: Array, dtype: DType) -> Any:
    import torch  # noqa: PLC0415

    if dtype is DType.BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def make_peers(names: Sequence[str], control: Control) -> list[Library]:
    """Return the peers called `names`; every rank must call it with the same names."""
    memory = UserMemory()
    makers: dict[str, Callable[[], Library]] = {
        "mpi": lambda: Mpi(memory),
        "gloo": lambda: Gloo(memory, control),
    }
    return [makers[name]() for name in names]


def close_peers(peers: Sequence[Library]) -> None:
    """End what the peers hold; every rank must call it."""
    for peer in peers:
        if isinstance(peer, Gloo):
            peer.close()
