"""The collectives of a process group on torch tensors, each carried out before it returns.

Tensors of any layout are taken: those that are not packed, or of a type that the core does not
reduce, take the longer way over a packed copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from blinkrun import buffers
from blinkrun.communicator import Communicator
from blinkrun.errors import InvalidBufferError
from blinkrun.executors.base import Request
from blinkrun.torch.distributed.exchange import exchange, fan_in, fan_out
from blinkrun.torch.distributed.reductions import (
    NATIVE,
    Reduction,
    from_wire,
    is_native,
    moved_as,
    to_wire,
)
from blinkrun.torch.distributed.work import Lane
from blinkrun.types import Collective, DType, Op, Rank

LARGE_COUNT = 1 << 16  # elements, from which a call chooses its chunks
LEAST_CHUNK_BYTES = 64 << 10
MOST_CHUNK_BYTES = 1 << 20
NUM_CHUNKS = 4
FOLD_BYTES = 4 << 20  # of each rank, gathered at a time for reductions that the core lacks


def chunk_bytes(num_bytes: int) -> int:
    """Return the chunk of a large call on memory that the ranks do not share.

    Ranks wait for each other every few chunks. Where something else runs on the cores, each such
    wait can cost a time slice: 25 MB on 2 ranks and 2 busy cores took 67 ms by chunks of 64 KiB
    and 8 ms by chunks of 1 MiB, on idle cores 1.6 and 2.2.

    >>> chunk_bytes(1 << 20), chunk_bytes(25 << 20)
    (262144, 1048576)
    """
    chunk = num_bytes // NUM_CHUNKS // LEAST_CHUNK_BYTES * LEAST_CHUNK_BYTES
    return min(MOST_CHUNK_BYTES, max(LEAST_CHUNK_BYTES, chunk))


def checked(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """Return `tensor` if it has memory to work on, of the CPU or of a CUDA device.

    Raises
    ------
    InvalidBufferError
        If it is sparse, quantized or somewhere else.
    """
    if not isinstance(tensor, torch.Tensor):
        raise InvalidBufferError(f"{what} takes torch tensors, got {type(tensor).__name__}")
    if not tensor.is_cpu and buffers.device_of(tensor) is None:
        raise InvalidBufferError(
            f"{what}: the tensor is on {tensor.device}; the blink backend takes tensors of the CPU"
            " and of CUDA devices"
        )
    if tensor.layout is not torch.strided:
        raise InvalidBufferError(f"{what}: the tensor is sparse; give it dense, as .to_dense()")
    return tensor


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same values whose memory holds them in order; itself if it does."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.detach().contiguous()


def is_packed(tensor: torch.Tensor) -> bool:
    """Whether the memory of `tensor` holds its values in order."""
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


class Calls:
    """Collectives over one communicator, carried out by `lane`; ranks are those of the group."""

    def __init__(self, communicator: Communicator, lane: Lane) -> None:
        self.communicator = communicator
        self._lane = lane
        self.rank = communicator.rank
        self.size = communicator.size
        self._run_request = communicator.run_request

    def run(  # noqa: PLR0913, PLR0917 - the core's own arguments
        self,
        collective: Collective,
        dtype: int,
        source: int,
        target: int,
        count: int,
        op: Op = Op.SUM,
        root: Rank = 0,
        factor: float = 1.0,
        *,
        at: torch.Tensor | None = None,
    ) -> None:
        """Run a collective on addresses: of the device that holds `at`, in its stream, if any."""
        device = None if at is None else buffers.device_of(at)
        if device is not None:
            where = {"stream": buffers.stream_of(at), "device": device}
            kind = DType(dtype)
            call = Request(collective, kind, op, root, source, target, count, factor, 1.0, **where)
            self._run_request(call)
            return
        # DType(dtype) would cost as much as a small call: an int does all that a request needs.
        request = Request(collective, dtype, op, root, source, target, count, factor, 1.0)  # type: ignore[arg-type]
        may_spin = not self._lane.is_helping  # a helper has no core for itself
        if count < LARGE_COUNT or self.communicator.executor.tuners:
            self._run_request(request, may_spin=may_spin)
            return
        group = self.communicator.executor.group
        group.set_chunk_bytes(chunk_bytes(count * DType(dtype).itemsize))
        try:
            self._run_request(request, may_spin=may_spin)
        finally:
            if not self.communicator.is_closed:
                group.set_chunk_bytes(0)

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.run(Collective.BARRIER, DType.UINT8, 0, 0, 0)

    # ---- reductions ----------------------------------------------------------------------------

    def allreduce(self, tensor: torch.Tensor, how: Reduction) -> None:
        """Reduce `tensor` over all ranks, in place."""
        dtype = tensor.dtype
        if is_native(dtype, how) and is_packed(tensor):
            pointer = tensor.data_ptr()
            self.run(
                Collective.ALLREDUCE,
                NATIVE[dtype],
                pointer,
                pointer,
                tensor.numel(),
                how.op,
                0,
                how.factor,
                at=tensor,
            )
        else:
            self._reduce_far(Collective.ALLREDUCE, tensor, tensor, how)

    def reduce(self, tensor: torch.Tensor, how: Reduction, root: Rank) -> None:
        """Reduce `tensor` into that of `root`; the others' stay as they are."""
        dtype = tensor.dtype
        if is_native(dtype, how) and is_packed(tensor):
            pointer = tensor.data_ptr()
            target = pointer if self.rank == root else 0
            self.run(
                Collective.REDUCE,
                NATIVE[dtype],
                pointer,
                target,
                tensor.numel(),
                how.op,
                root,
                how.factor,
                at=tensor,
            )
        else:
            self._reduce_far(Collective.REDUCE, tensor, tensor, how, root)

    def reduce_scatter(self, output: torch.Tensor, source: torch.Tensor, how: Reduction) -> None:
        """Reduce `source` over all ranks; `output` gets the slice of this rank."""
        dtype = source.dtype
        _check_sizes("reduce_scatter", "input", source, output, self.size)
        if is_native(dtype, how) and is_packed(source) and is_packed(output):
            self.run(
                Collective.REDUCESCATTER,
                NATIVE[dtype],
                source.data_ptr(),
                output.data_ptr(),
                output.numel(),
                how.op,
                0,
                how.factor,
                at=source,
            )
        else:
            self._reduce_far(Collective.REDUCESCATTER, source, output, how)

    def reduce_scatter_list(
        self, output: torch.Tensor, sources: Sequence[torch.Tensor], how: Reduction
    ) -> None:
        """Reduce tensor r of every rank's `sources` into the `output` of rank r."""
        _check_number("reduce_scatter", sources, self.size)
        if all(each.numel() == output.numel() for each in sources):
            line = as_line(sources)
            if line is None:
                line = torch.cat([packed(each).view(-1) for each in sources])
            self.reduce_scatter(output, line, how)
            return
        if sources[self.rank].numel() != output.numel():
            raise InvalidBufferError(
                f"reduce_scatter: output has {output.numel()} elements, input {self.rank} has"
                f" {sources[self.rank].numel()}"
            )
        for root, source in enumerate(sources):
            if root == self.rank:
                output.copy_(source.view(output.shape))
                self.reduce(output, how, root)
            else:
                self.reduce(source, how, root)

    def _reduce_far(
        self,
        collective: Collective,
        source: torch.Tensor,
        target: torch.Tensor,
        how: Reduction,
        root: Rank = 0,
    ) -> None:
        """Reduce over a packed copy of a type that the core knows."""
        takes = collective is not Collective.REDUCE or root == self.rank
        wire, core_how = to_wire(packed(source), how)
        if how.bitwise is not None:
            if wire.dtype.is_floating_point:
                raise InvalidBufferError(f"{how.name} is not defined on {source.dtype}")
            out = self._folded(wire, how)
            if collective is Collective.REDUCESCATTER:
                out = out.view(self.size, -1)[self.rank]
        elif collective is Collective.REDUCESCATTER:
            out = wire.new_empty(wire.numel() // self.size)
        else:
            out = torch.empty_like(wire)
        if how.bitwise is None:
            self.run(
                collective,
                NATIVE[wire.dtype],
                wire.data_ptr(),
                out.data_ptr() if takes else 0,
                out.numel(),
                core_how.op,
                root,
                core_how.factor,
                at=wire,
            )
        if takes:
            shape = (*target.shape, 2) if target.dtype.is_complex else target.shape
            from_wire(out.view(shape), target.detach(), how, self.size)

    def _folded(self, tensor: torch.Tensor, how: Reduction) -> torch.Tensor:
        """Return the reduction of `tensor` by an operation that the core lacks: by gathering."""
        line = tensor.view(-1)
        out = torch.empty_like(line)
        step = max(1, FOLD_BYTES // line.element_size())
        for start in range(0, line.numel(), step) or (0,):
            piece = line[start : start + step]
            everyone = piece.new_empty((self.size, piece.numel()))
            self.all_gather(everyone, piece)
            folded = everyone[0]
            for row in everyone[1:]:
                folded = how.bitwise(folded, row)  # type: ignore[misc]
            out[start : start + step] = folded
        return out.view(tensor.shape)

    # ---- moves ---------------------------------------------------------------------------------

    def broadcast(self, tensor: torch.Tensor, root: Rank) -> None:
        """Give `tensor` the values that it has on `root`, in place."""
        work = packed(tensor)
        code, per = moved_as(work.dtype)
        pointer = work.data_ptr()
        count = work.numel() * per
        self.run(Collective.BROADCAST, code, pointer, pointer, count, Op.SUM, root, at=work)
        if pointer != tensor.data_ptr() and self.rank != root:
            tensor.detach().copy_(work)

    def all_gather(self, output: torch.Tensor, source: torch.Tensor) -> None:
        """Put the `source` of every rank into `output`, in the order of ranks."""
        _check_sizes("all_gather", "output", output, source, self.size)
        source = packed(source)
        out = output if is_packed(output) else torch.empty_like(output, memory_format=PACKED)
        code, per = moved_as(source.dtype)
        count = source.numel() * per
        self.run(Collective.ALLGATHER, code, source.data_ptr(), out.data_ptr(), count, at=out)
        if out is not output:
            output.detach().copy_(out)

    def all_gather_list(self, outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
        """Put the `source` of rank r into tensor r of `outputs`, whose sizes may differ."""
        _check_number("all_gather", outputs, self.size)
        if outputs[self.rank].numel() != source.numel():
            raise InvalidBufferError(
                f"all_gather: output {self.rank} has {outputs[self.rank].numel()} elements, this"
                f" rank gives {source.numel()}"
            )
        if any(each.dtype is not source.dtype for each in outputs):
            raise InvalidBufferError("all_gather: outputs and input must have one dtype")
        if any(each.numel() != source.numel() for each in outputs):
            outputs[self.rank].detach().copy_(source.view(outputs[self.rank].shape))
            for root, each in enumerate(outputs):
                self.broadcast(each, root)
            return
        line = as_line(outputs)
        if line is not None:
            self.all_gather(line, source)
            return
        line = source.new_empty((self.size, source.numel()))
        self.all_gather(line, source)
        for row, each in zip(line, outputs, strict=True):
            each.detach().copy_(row.view(each.shape))

    def all_to_all(self, output: torch.Tensor, source: torch.Tensor) -> None:
        """Send slice r of `source` to rank r; `output` gets what comes, all slices alike."""
        if source.numel() != output.numel() or source.numel() % self.size:
            raise InvalidBufferError(
                f"all_to_all: input has {source.numel()} elements, output {output.numel()}; both"
                f" must be the same multiple of the {self.size} ranks, or give split sizes"
            )
        _check_dtypes("all_to_all", source, output)
        source = packed(source)
        out = output
        if not is_packed(output) or source.data_ptr() == output.data_ptr():
            out = torch.empty_like(output, memory_format=PACKED)
        code, per = moved_as(source.dtype)
        count = source.numel() * per // self.size
        self.run(Collective.ALLTOALL, code, source.data_ptr(), out.data_ptr(), count, at=out)
        if out is not output:
            output.detach().copy_(out)

    def all_to_all_list(
        self, outputs: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]
    ) -> None:
        """Send tensor r of `sources` to rank r, whose `outputs` have it at this rank's number."""
        _check_number("all_to_all", outputs, self.size)
        _check_number("all_to_all", sources, self.size)
        exchange(self, outputs, [packed(each) for each in sources])

    def gather(self, outputs: Sequence[torch.Tensor], source: torch.Tensor, root: Rank) -> None:
        """Put the `source` of rank r into tensor r of the root's `outputs`."""
        if self.rank == root:
            _check_number("gather", outputs, self.size)
        fan_in(self, outputs, packed(source), root)

    def scatter(self, output: torch.Tensor, sources: Sequence[torch.Tensor], root: Rank) -> None:
        """Put tensor r of the root's `sources` into the `output` of rank r."""
        if self.rank == root:
            _check_number("scatter", sources, self.size)
        fan_out(self, output, [packed(each) for each in sources], root)


PACKED = torch.contiguous_format


def as_line(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return one flat tensor over all `tensors` if they lie one behind the other, else None."""
    first = tensors[0]
    step = first.numel() * first.element_size()
    if not all(is_packed(each) and each.dtype is first.dtype for each in tensors):
        return None
    storage = first.untyped_storage().data_ptr()
    for at, each in enumerate(tensors):
        if each.data_ptr() != first.data_ptr() + at * step:
            return None
        if each.numel() != first.numel() or each.untyped_storage().data_ptr() != storage:
            return None
    flat = first.detach().view(-1)
    return flat.as_strided((len(tensors) * flat.numel(),), (1,), flat.storage_offset())


def _check_sizes(what: str, name: str, large: torch.Tensor, small: torch.Tensor, size: int) -> None:
    if large.numel() != small.numel() * size:
        raise InvalidBufferError(
            f"{what}: {name} has {large.numel()} elements, needs {small.numel()} from each of the"
            f" {size} ranks"
        )
    _check_dtypes(what, large, small)


def _check_dtypes(what: str, left: torch.Tensor, right: torch.Tensor) -> None:
    if left.dtype is not right.dtype:
        raise InvalidBufferError(
            f"{what}: input and output must have one dtype, got {left.dtype} and {right.dtype}"
        )


def _check_number(what: str, tensors: Sequence[Any], size: int) -> None:
    if len(tensors) != size:
        raise InvalidBufferError(f"{what}: a list of {len(tensors)} tensors, needs {size}")


def starts(counts: Sequence[int]) -> list[int]:
    """Return where pieces of `counts` begin that lie one behind the other.

    >>> starts([2, 0, 3])
    [0, 2, 2]
    """
    return [0, *itertools.accumulate(counts)][:-1]
