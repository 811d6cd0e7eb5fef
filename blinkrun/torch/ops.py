"""Collectives on torch tensors.

Tensors live on the CPU and have one of the dtypes in `DTYPES`. An out-of-place call takes any
layout and any autograd state: it works on the detached, contiguous values and its result takes
part in no graph. An in-place call on a tensor that is not contiguous works on a copy that is
written back when it completes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import blinkrun
from blinkrun.errors import InvalidBufferError, MismatchError, UsageError
from blinkrun.types import DType, Op

Average = Op.AVERAGE
Sum = Op.SUM
Min = Op.MIN
Max = Op.MAX
Product = Op.PRODUCT

DTYPES: dict[torch.dtype, DType] = {
    torch.uint8: DType.UINT8,
    torch.int8: DType.INT8,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.bool: DType.BOOL,
}


def rank() -> int:
    """Return the number of this process in the job, from 0."""
    return int(blinkrun.world().rank)


def size() -> int:
    """Return how many processes the job has."""
    return int(blinkrun.world().size)


def local_rank() -> int:
    """Return the number of this process on its host, from 0."""
    return int(blinkrun.world().local_rank)


def local_size() -> int:
    """Return how many processes of the job run on this host."""
    return int(blinkrun.world().local_size)


def cross_rank() -> int:
    """Return the number of this host among those that have a process with this local rank."""
    return int(blinkrun.world().cross_rank)


def cross_size() -> int:
    """Return how many hosts have a process with this local rank."""
    return int(blinkrun.world().cross_size)


class Handle:
    """A collective under way; give it to `synchronize` or `poll`."""

    __slots__ = ("_finish", "_pending", "_result", "name")

    def __init__(
        self, pending: Any, finish: Callable[[], torch.Tensor], name: str | None = None
    ) -> None:
        self._pending = pending
        self._finish = finish
        self._result: torch.Tensor | None = None
        self.name = name

    def done(self) -> bool:
        """Whether the result is there; never blocks."""
        return self._result is not None or bool(self._pending.done())

    def wait(self) -> torch.Tensor:
        """Return the result, waiting for it if need be; may be called again."""
        if self._result is None:
            self._pending.wait()
            self._result = self._finish()
        return self._result


def synchronize(handle: Handle) -> torch.Tensor:
    """Return the result of an asynchronous collective, waiting until it is there."""
    return handle.wait()


def poll(handle: Handle) -> bool:
    """Whether an asynchronous collective has its result; `synchronize` then does not block."""
    return handle.done()


def barrier() -> None:
    """Return when every rank has called it."""
    blinkrun.world().barrier()


def allreduce(
    tensor: torch.Tensor,
    op: Op = Average,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return `tensor` reduced over all ranks, bitwise the same on every rank.

    Parameters
    ----------
    tensor : torch.Tensor
        Same shape and dtype on every rank; not changed. The result takes part in no graph.
    op : Op, default Average
        `Average`, `Sum`, `Min`, `Max` or `Product`. An average of integers is rounded down.
    name : str, optional
        Used in messages.
    prescale_factor, postscale_factor : float
        Multiply before and after the reduction.

    Raises
    ------
    InvalidBufferError
        If the tensor is sparse, not on the CPU or of a dtype that is not in `DTYPES`.
    """
    source = _packed(_dense(tensor, "allreduce", name))
    out = torch.empty_like(source)
    _reduce(source, op, out, prescale_factor, postscale_factor)
    return out


def allreduce_(
    tensor: torch.Tensor,
    op: Op = Average,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce `tensor` over all ranks in place and return it; see `allreduce`."""
    source = _dense(tensor, "allreduce_", name)
    work = _packed(source)
    _reduce(work, op, work, prescale_factor, postscale_factor)
    return _written_back(tensor, source, work)


def allreduce_async(
    tensor: torch.Tensor,
    op: Op = Average,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin `allreduce` and return its handle; leave `tensor` alone until it is done."""
    source = _packed(_dense(tensor, "allreduce_async", name))
    out = torch.empty_like(source)
    pending = _begin_reduce(source, op, out, prescale_factor, postscale_factor)
    return Handle(pending, lambda: out, name)


def allreduce_async_(
    tensor: torch.Tensor,
    op: Op = Average,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin `allreduce_` and return its handle; leave `tensor` alone until it is done."""
    source = _dense(tensor, "allreduce_async_", name)
    work = _packed(source)
    pending = _begin_reduce(work, op, work, prescale_factor, postscale_factor)
    return Handle(pending, lambda: _written_back(tensor, source, work), name)


def broadcast(tensor: torch.Tensor, root_rank: int = 0, name: str | None = None) -> torch.Tensor:
    """Return the values that `tensor` has on `root_rank`; `tensor` is not changed."""
    source = _dense(tensor, "broadcast", name)
    out = _packed(source.clone(memory_format=torch.contiguous_format))
    blinkrun.world().broadcast(_line(out), root=_root(root_rank), out=_line(out))
    return out


def broadcast_(tensor: torch.Tensor, root_rank: int = 0, name: str | None = None) -> torch.Tensor:
    """Give `tensor` the values that it has on `root_rank`, in place, and return it."""
    source = _dense(tensor, "broadcast_", name)
    work = _packed(source)
    blinkrun.world().broadcast(_line(work), root=_root(root_rank), out=_line(work))
    return _written_back(tensor, source, work)


def broadcast_async(tensor: torch.Tensor, root_rank: int = 0, name: str | None = None) -> Handle:
    """Begin `broadcast` and return its handle."""
    source = _dense(tensor, "broadcast_async", name)
    out = _packed(source.clone(memory_format=torch.contiguous_format))
    pending = blinkrun.world().broadcast_async(_line(out), root=_root(root_rank), out=_line(out))
    return Handle(pending, lambda: out, name)


def broadcast_async_(tensor: torch.Tensor, root_rank: int = 0, name: str | None = None) -> Handle:
    """Begin `broadcast_` and return its handle; leave `tensor` alone until it is done."""
    source = _dense(tensor, "broadcast_async_", name)
    work = _packed(source)
    pending = blinkrun.world().broadcast_async(_line(work), root=_root(root_rank), out=_line(work))
    return Handle(pending, lambda: _written_back(tensor, source, work), name)


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """Return the tensors of all ranks joined along the first dimension, rank 0 first.

    Parameters
    ----------
    tensor : torch.Tensor
        Dtype and all dimensions but the first are the same on every rank; the first may differ.
        A scalar counts as a vector of one element.

    Raises
    ------
    MismatchError
        If dtype or a dimension other than the first differs; raised on every rank.
    """
    source, lengths = _agree_on_lengths(tensor, "allgather", name)
    padded = _padded(source, max(lengths))
    return _without_padding(blinkrun.world().allgather(padded), lengths)


def allgather_async(tensor: torch.Tensor, name: str | None = None) -> Handle:
    """Begin `allgather` and return its handle; the lengths are agreed before it returns."""
    source, lengths = _agree_on_lengths(tensor, "allgather_async", name)
    padded = _padded(source, max(lengths))
    out = padded.new_empty((len(lengths) * padded.shape[0], *padded.shape[1:]))
    pending = blinkrun.world().allgather_async(padded, out=out)
    return Handle(pending, lambda: _without_padding(out, lengths), name)


def _dense(tensor: torch.Tensor, what: str, name: str | None) -> torch.Tensor:
    """Return `tensor` out of its graph, or raise if no collective can read it."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidBufferError(f"{what} takes a torch tensor, got {type(tensor).__name__}")
    called = f"{what} of '{name}'" if name else what
    if tensor.layout != torch.strided:
        raise InvalidBufferError(f"{called}: the tensor is sparse; give it dense, as .to_dense()")
    if tensor.device.type != "cpu":
        raise InvalidBufferError(f"{called}: the tensor is on {tensor.device}; move it to the CPU")
    if tensor.dtype not in DTYPES:
        known = ", ".join(dtype.label for dtype in DTYPES.values())
        raise InvalidBufferError(f"{called}: no dtype {_label(tensor.dtype)}; convert to {known}")
    return tensor.detach()


def _label(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _packed(source: torch.Tensor) -> torch.Tensor:
    """Return `source` itself if its memory is its values in order, else a copy that is so."""
    return source.contiguous().resolve_neg()


def _line(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor as a vector over the same memory, scalars too."""
    return tensor.view(-1)


def _reduce(
    source: torch.Tensor, op: Op, out: torch.Tensor, prescale: float, postscale: float
) -> None:
    blinkrun.world().allreduce(
        _line(source), _op(op), _line(out), prescale=prescale, postscale=postscale
    )


def _begin_reduce(
    source: torch.Tensor, op: Op, out: torch.Tensor, prescale: float, postscale: float
) -> Any:
    return blinkrun.world().allreduce_async(
        _line(source), _op(op), _line(out), prescale=prescale, postscale=postscale
    )


def _op(op: Op) -> Op:
    if not isinstance(op, Op):
        raise UsageError(f"op is {op!r}; choose Average, Sum, Min, Max or Product")
    return op


def _root(root_rank: int) -> int:
    if not 0 <= root_rank < size():
        raise UsageError(f"root_rank is {root_rank}, ranks are 0 to {size() - 1}")
    return root_rank


def _written_back(tensor: torch.Tensor, source: torch.Tensor, work: torch.Tensor) -> torch.Tensor:
    """Return `tensor` with the values of `work`, which is `source` itself if contiguous."""
    if work.data_ptr() != source.data_ptr():
        source.copy_(work)
    return tensor


def _agree_on_lengths(
    tensor: torch.Tensor, what: str, name: str | None
) -> tuple[torch.Tensor, list[int]]:
    """Return `tensor` ready to be gathered and the first dimension of every rank."""
    source = _packed(_dense(tensor, what, name))
    source = source.view(1) if source.dim() == 0 else source
    mine = (_label(source.dtype), tuple(source.shape[1:]), source.shape[0])
    everyone = blinkrun.world().allgather_object(mine)
    for other, (dtype, rest, length) in enumerate(everyone):
        if (dtype, rest) != everyone[0][:2]:
            found, wanted = (length, *rest), (everyone[0][2], *everyone[0][1])
            called = f"{what} of '{name}'" if name else what
            raise MismatchError(
                f"rank {other}: {called} has {dtype} {found}, rank 0 has {everyone[0][0]} "
                f"{wanted}; only the first dimension may differ",
                {
                    who: f"{what} {call[0]} {(call[2], *call[1])}"
                    for who, call in enumerate(everyone)
                },
            )
    return source, [length for _, _, length in everyone]


def _padded(source: torch.Tensor, length: int) -> torch.Tensor:
    """Return `source` with zero rows behind it up to `length`."""
    if source.shape[0] == length:
        return source
    padded = source.new_zeros((length, *source.shape[1:]))
    padded[: source.shape[0]] = source
    return padded


def _without_padding(gathered: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Return the first `lengths[r]` rows of each rank's part, joined."""
    if len(set(lengths)) == 1:
        return gathered
    parts = gathered.view(len(lengths), max(lengths), *gathered.shape[1:])
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
