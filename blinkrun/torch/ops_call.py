"""From torch tensors to requests of the engine.

Tensors live on the CPU. One that is contiguous and of a type of the core is handed over where it
is; others are copied, and results written back when the call is through. Requests are values and
much the same from step to step, so those with a name are kept and found again by what they are
made of: building one costs more than a small allreduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from blinkrun.adapter.process_sets import ProcessSet, number_of
from blinkrun.adapter.where import caller, calling_frame, place
from blinkrun.buffers import View
from blinkrun.engine import engine
from blinkrun.engine.handle import Part
from blinkrun.engine.request import Kind, Member, Request
from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.torch.dtypes import NATIVE, Wire, from_wide, label, moved, reduced, to_wide
from blinkrun.torch.ops_handle import Handle
from blinkrun.types import Op

NO_SCALES = (1.0, 1.0)
_KEPT_REQUESTS = 8192
_kept: dict[tuple[Any, ...], Request] = {}

Finish = Callable[[torch.Tensor], torch.Tensor]


class Call(NamedTuple):
    """What is asked of tensors, whichever they are; the fields are those of `Request`."""

    kind: Kind
    name: str | None
    process_set: ProcessSet
    op: int = Op.SUM
    root: int = -1
    scales: tuple[float, float] = NO_SCALES
    splits: tuple[int, ...] = ()

    @property
    def called(self) -> str:
        """The call as messages name it."""
        return f"{self.kind.label} of '{self.name}'" if self.name else self.kind.label

    def named(self) -> Call:
        """Return the call with a name, its own or the next of its kind."""
        return self if self.name else self._replace(name=next_name(self))


class Piece:
    """One tensor of a call.

    Attributes
    ----------
    part : Part
        Its memory, for the engine.
    result : torch.Tensor or None
        Where the result lies; None if the engine makes it.
    finish : callable or None
        Makes of that what the user gets; may be called twice.
    wire : Wire
        How it travels.
    """

    __slots__ = ("finish", "part", "result", "wire")

    def __init__(
        self,
        part: Part,
        wire: Wire,
        result: torch.Tensor | None = None,
        finish: Finish | None = None,
    ) -> None:
        self.part = part
        self.wire = wire
        self.result = result
        self.finish = finish


# ---- calls -------------------------------------------------------------------------------------


def begin(call: Call, piece: Piece) -> Handle:
    """Submit a call on one tensor."""
    return Handle(submit(call, [piece]), lambda pending: taken(pending, piece))


def begin_group(call: Call, pieces: list[Piece]) -> Handle:
    """Submit a call on several tensors, which complete together."""
    return Handle(submit(call, pieces), partial(taken_all, pieces=pieces))


def wait_for(call: Call, piece: Piece) -> torch.Tensor:
    """Submit a call on one tensor and return its result."""
    pending = submit(call, [piece], sync=True)
    pending.wait()
    return taken(pending, piece)


def wait_for_group(call: Call, pieces: list[Piece]) -> list[torch.Tensor]:
    """Submit a call on several tensors and return their results."""
    pending = submit(call, pieces, sync=True)
    pending.wait()
    return taken_all(pending, pieces)


def submit(call: Call, pieces: list[Piece], *, sync: bool = False) -> engine.Handle:
    """Submit a call; `sync` says that the caller waits at once."""
    return engine.current().submit(
        _request(call, pieces), [piece.part for piece in pieces], sync=sync
    )


def taken(pending: engine.Handle, piece: Piece, index: int = 0) -> torch.Tensor:
    """Return what the user gets of tensor `index` of a call that is through."""
    result = pending.targets[index].owner if piece.result is None else piece.result
    return result if piece.finish is None else piece.finish(result)


def taken_all(pending: engine.Handle, pieces: list[Piece]) -> list[torch.Tensor]:
    """Return what the user gets of a call on several tensors that is through."""
    return [taken(pending, piece, index) for index, piece in enumerate(pieces)]


def next_name(call: Call) -> str:
    """Return the name of a call that has none: the next of its kind and process set."""
    return engine.current().next_name(call.kind.label, number_of(call.process_set))


def _request(call: Call, pieces: list[Piece]) -> Request:
    name = call.name
    if not name:  # an empty one as well
        return _new_request(call, pieces, next_name(call), caller())
    frame = calling_frame()
    key = (
        name,
        call[2:],  # process set, op, root, scales, splits
        call.kind,
        frame.f_code.co_filename,
        frame.f_lineno,
        *[(p.part.source.shape, p.wire) for p in pieces],
    )
    request = _kept.get(key)
    if request is None or request.process_set != call.process_set.process_set_id:
        request = _new_request(call, pieces, name, place(frame))
        if len(_kept) >= _KEPT_REQUESTS:
            _kept.clear()
        _kept[key] = request
    return request


def _new_request(call: Call, pieces: list[Piece], name: str, where: str) -> Request:
    sources = [piece.part.source for piece in pieces]
    devices = [piece.wire.device for piece in pieces]
    op = pieces[0].wire.op
    if isinstance(name, bytes) or not isinstance(name, str):
        raise UsageError(f"{call.kind.label}: name is {name!r}, need a text")
    return Request(
        name,
        call.kind,
        tuple(Member(source.dtype, source.shape) for source in sources),
        number_of(call.process_set),
        call.op if op is None else op,
        call.root,
        call.scales,
        call.splits,
        devices[0] if len(set(devices)) == 1 else ", ".join(devices),
        where=where,
    )


# ---- tensors -----------------------------------------------------------------------------------


def piece_to_reduce(tensor: torch.Tensor, call: Call, *, in_place: bool) -> Piece:
    """Return a tensor that is reduced into a new one of its shape, or into itself."""
    wire = _wire_to_reduce(tensor, call)
    if wire.wide is None:
        return _piece_of_its_shape(tensor, wire, in_place=in_place)
    work = to_wide(tensor.detach(), wire, call.op)
    source = _view(work, wire)
    back = _back(tensor, call)
    return Piece(
        Part(source, source),
        wire,
        work,
        (lambda result: _write_back(back(result), tensor)) if in_place else back,
    )


def piece_to_reducescatter(tensor: torch.Tensor, call: Call) -> Piece:
    """Return a tensor that is reduced, and of which this rank gets some rows."""
    wire = _wire_to_reduce(tensor, call)
    if tensor.dim() == 0:
        raise UsageError(f"{call.called}: a scalar has no rows to scatter; give it a dimension")
    if wire.wide is None:
        work, finish = _packed(tensor), None
    else:
        work, finish = to_wide(tensor.detach(), wire, call.op), _back(tensor, call)
    return Piece(Part(_view(work, wire), None, _maker(work.dtype, wire)), wire, None, finish)


def piece_to_broadcast(tensor: torch.Tensor, call: Call, *, in_place: bool) -> Piece:
    """Return a tensor that takes the root's values, or whose likeness in a new one does."""
    wire = moved(_checked(tensor, call).dtype)
    return _piece_of_its_shape(tensor, wire, in_place=in_place)


def piece_to_move(tensor: torch.Tensor, call: Call) -> Piece:
    """Return a tensor whose rows go to other ranks; a scalar counts as one row."""
    wire = moved(_checked(tensor, call).dtype)
    work = _packed(tensor)
    work = work.detach().view(1) if work.dim() == 0 else work
    return Piece(Part(_view(work, wire), None, _maker(work.dtype, wire)), wire)


def _piece_of_its_shape(tensor: torch.Tensor, wire: Wire, *, in_place: bool) -> Piece:
    work = _packed(tensor)
    source = _view(work, wire)
    if not in_place:
        result = torch.empty_like(work)
        return Piece(Part(source, _view(result, wire)), wire, result)
    finish = None if work is tensor else partial(_write_back, tensor=tensor)
    return Piece(Part(source, source), wire, work, finish)


def _checked(tensor: Any, call: Call) -> torch.Tensor:
    """Return `tensor`, or raise if no collective can read it."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidBufferError(f"{call.called} takes a torch tensor, got {type(tensor).__name__}")
    if tensor.is_nested:
        raise InvalidBufferError(
            f"{call.called}: the tensor is nested; give its parts, as a group by .unbind()"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise InvalidBufferError(
            f"{call.called}: the tensor is {'quantized' if tensor.is_quantized else 'sparse'}; "
            f"give it dense, as .{'dequantize' if tensor.is_quantized else 'to_dense'}()"
        )
    if not tensor.is_cpu:
        raise InvalidBufferError(
            f"{call.called}: the tensor is on {tensor.device}; this version moves tensors on the "
            "CPU only, move it there"
        )
    return tensor


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` itself if its memory is its values in order, else a copy that is so."""
    if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
        return tensor
    return tensor.detach().contiguous().resolve_conj().resolve_neg()


def _wire_to_reduce(tensor: Any, call: Call) -> Wire:
    dtype = _checked(tensor, call).dtype
    if dtype is torch.float32 and call.op <= Op.PRODUCT:
        return _FLOAT32
    try:
        wire = reduced(dtype, call.op)
    except InvalidBufferError as err:
        raise InvalidBufferError(f"{call.called}: {err}") from None
    if call.scales != NO_SCALES and dtype in (torch.bool, torch.uint64):
        raise InvalidBufferError(
            f"{call.called}: {label(dtype)} takes no factors; convert it to float64"
        )
    return wire


_FLOAT32 = NATIVE[torch.float32]


def _view(tensor: torch.Tensor, wire: Wire) -> View:
    shape, count = tuple(tensor.shape), tensor.numel()
    if wire.per > 1:
        shape, count = (*shape, wire.per), count * wire.per
    return View(tensor.data_ptr(), count, shape, wire.dtype, True, tensor)


@cache
def _maker(dtype: torch.dtype, wire: Wire) -> Callable[[tuple[int, ...]], View]:
    """Return what makes the memory for a result of a shape that the engine finds out."""

    def make(shape: Sequence[int]) -> View:
        result = torch.empty(shape if wire.per == 1 else shape[:-1], dtype=dtype)
        return _view(result, wire)

    return make


def _back(tensor: torch.Tensor, call: Call) -> Finish:
    """Return what converts a reduced tensor into the dtype of `tensor`."""
    return partial(from_wide, dtype=tensor.dtype, op=call.op, size=call.process_set.size())


@torch.no_grad()
def _write_back(result: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.copy_(result)
