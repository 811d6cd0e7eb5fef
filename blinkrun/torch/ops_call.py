"""From torch tensors to requests of the engine.

A tensor that is contiguous and of a type of the core is handed over where it is, on the CPU or on a
CUDA device; others are copied there, and results written back when the call is through. Requests
are values and much the same from step to step, so those with a name are kept and found again by
what they are made of: building one costs more than a small allreduce.
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
from blinkrun.engine.arithmetic import is_own
from blinkrun.engine.handle import Part
from blinkrun.engine.request import ADASUM, CPU, Kind, Member, Request
from blinkrun.errors import InvalidBufferError, NotSupportedError, UsageError
from blinkrun.torch import devices
from blinkrun.torch.dtypes import (
    NATIVE,
    Wire,
    from_wide,
    label,
    moved,
    on_device,
    reduced,
    scaled,
    to_wide,
    whole_on_device,
)
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
    """Return what the user gets of tensor `index` of a call that is through.

    On a device it is there for what comes next in the current stream.
    """
    if index == 0:
        devices.follow(pending)
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
    places = [piece.wire.device for piece in pieces]
    wire = pieces[0].wire
    if any((p.wire.op, p.wire.scales) != (wire.op, wire.scales) for p in pieces):
        raise NotSupportedError(
            f"{call.called}: averages and factors of {', '.join(sorted(set(places)))} are worked "
            "out apart; call it for each type"
        )
    if isinstance(name, bytes) or not isinstance(name, str):
        raise UsageError(f"{call.kind.label}: name is {name!r}, need a text")
    return Request(
        name,
        call.kind,
        tuple(Member(source.dtype, source.shape) for source in sources),
        number_of(call.process_set),
        call.op if wire.op is None else wire.op,
        call.root,
        call.scales if wire.scales is None else wire.scales,
        call.splits,
        places[0] if len(set(places)) == 1 else ", ".join(places),
        where=where,
    )


# ---- tensors -----------------------------------------------------------------------------------


def piece_to_reduce(tensor: torch.Tensor, call: Call, *, in_place: bool) -> Piece:
    """Return a tensor that is reduced into a new one of its shape, or into itself."""
    wire = _wire_to_reduce(tensor, call)
    if call.op == ADASUM and devices.index_of(tensor) is not None:
        return _piece_by_host(tensor, call, in_place=in_place)
    if wire.wide is None:
        return _piece_of_its_shape(tensor, wire, in_place=in_place)
    work, back = _widened(tensor, wire, call)
    source = _view(work, wire)
    return Piece(
        Part(source, source),
        wire,
        work,
        (lambda result: _write_back(back(result), tensor)) if in_place else back,
    )


def _piece_by_host(tensor: torch.Tensor, call: Call, *, in_place: bool) -> Piece:
    """Return a tensor of a device that is reduced on the CPU, there and back: Adasum is there."""
    wire = reduced(tensor.dtype, call.op)
    there = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    work = there if wire.wide is None else to_wide(there, wire, call.op)
    source = _view(work, wire)

    def finish(result: torch.Tensor) -> torch.Tensor:
        back = result.to(tensor.dtype).to(tensor.device)
        return _write_back(back, tensor) if in_place else back

    return Piece(Part(source, source), wire, work, finish)


def piece_to_reducescatter(tensor: torch.Tensor, call: Call) -> Piece:
    """Return a tensor that is reduced, and of which this rank gets some rows."""
    wire = _wire_to_reduce(tensor, call)
    if tensor.dim() == 0:
        raise UsageError(f"{call.called}: a scalar has no rows to scatter; give it a dimension")
    if wire.wide is None:
        work, finish = _packed(tensor), None
    else:
        work, finish = _widened(tensor, wire, call)
    return Piece(Part(_view(work, wire), None, _maker_for(work, wire)), wire, None, finish)


def piece_to_broadcast(tensor: torch.Tensor, call: Call, *, in_place: bool) -> Piece:
    """Return a tensor that takes the root's values, or whose likeness in a new one does."""
    wire = _wire_to_move(tensor, call)
    return _piece_of_its_shape(tensor, wire, in_place=in_place)


def piece_to_move(tensor: torch.Tensor, call: Call) -> Piece:
    """Return a tensor whose rows go to other ranks; a scalar counts as one row."""
    wire = _wire_to_move(tensor, call)
    work = _packed(tensor)
    work = work.detach().view(1) if work.dim() == 0 else work
    return Piece(Part(_view(work, wire), None, _maker_for(work, wire)), wire)


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
    if not tensor.is_cpu and not tensor.is_cuda:
        raise InvalidBufferError(
            f"{call.called}: the tensor is on {tensor.device}; tensors on the CPU and on CUDA "
            "devices are moved, bring it there"
        )
    return tensor


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` itself if its memory is its values in order, else a copy that is so."""
    if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
        return tensor
    return tensor.detach().contiguous().resolve_conj().resolve_neg()


def _wire_to_reduce(tensor: Any, call: Call) -> Wire:
    dtype = _checked(tensor, call).dtype
    on_cpu = devices.index_of(tensor) is None
    if dtype is torch.float32 and call.op <= Op.PRODUCT:
        return _FLOAT32 if on_cpu else on_device(_FLOAT32)
    try:
        wire = reduced(dtype, call.op)
        if not on_cpu and call.op != ADASUM:
            is_apart = wire.op is None and is_own(call.op, wire.dtype, call.scales)
            wire = whole_on_device(dtype, call.op, call.scales) if is_apart else on_device(wire)
    except InvalidBufferError as err:
        raise InvalidBufferError(f"{call.called}: {err}") from None
    if call.scales != NO_SCALES and dtype in (torch.bool, torch.uint64):
        raise InvalidBufferError(
            f"{call.called}: {label(dtype)} takes no factors; convert it to float64"
        )
    return wire


def _wire_to_move(tensor: Any, call: Call) -> Wire:
    wire = moved(_checked(tensor, call).dtype)
    return wire if devices.index_of(tensor) is None else on_device(wire)


_FLOAT32 = NATIVE[torch.float32]


def _view(tensor: torch.Tensor, wire: Wire) -> View:
    shape, count = tuple(tensor.shape), tensor.numel()
    if wire.per > 1:
        shape, count = (*shape, wire.per), count * wire.per
    if tensor.is_cpu and wire.device.startswith(CPU):
        return View(tensor.data_ptr(), count, shape, wire.dtype, True, tensor)
    return View(tensor.data_ptr(), count, shape, wire.dtype, True, tensor, *devices.view_at(tensor))


def _maker_for(work: torch.Tensor, wire: Wire) -> Callable[[tuple[int, ...]], View]:
    return _maker(work.dtype, wire, devices.index_of(work))


@cache
def _maker(dtype: torch.dtype, wire: Wire, index: int | None) -> Callable[[tuple[int, ...]], View]:
    """Return what makes the memory for a result of a shape that the engine finds out."""

    def make(shape: Sequence[int]) -> View:
        wanted = shape if wire.per == 1 else shape[:-1]
        if index is not None:
            return _view(devices.make(wanted, dtype, index), wire)
        return _view(torch.empty(wanted, dtype=dtype), wire)

    return make


def _widened(tensor: torch.Tensor, wire: Wire, call: Call) -> tuple[torch.Tensor, Finish]:
    """Return a copy of `tensor` in the wide type, and what makes of its reduction the result."""
    work = to_wide(tensor.detach(), wire, call.op)
    size = call.process_set.size()
    if wire.scales is None:
        return work, partial(from_wide, dtype=tensor.dtype, op=call.op, size=size)
    finish = partial(
        _whole,
        dtype=tensor.dtype,
        divisor=size if call.op == Op.AVERAGE else 1,
        factor=call.scales[1],
    )
    return scaled(work, call.scales[0]), finish


def _whole(
    result: torch.Tensor, *, dtype: torch.dtype, divisor: int | None, factor: float
) -> torch.Tensor:
    """Return the average, or the scaled reduction, of whole numbers; see `whole_on_device`."""
    if divisor != 1:
        result = torch.div(result, divisor, rounding_mode="trunc")
    return scaled(result, factor).to(dtype)


@torch.no_grad()
def _write_back(result: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.copy_(result)
