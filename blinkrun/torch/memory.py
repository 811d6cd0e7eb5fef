"""The arena memory of a set of buckets: what lies where, and what each bucket's reduction reads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from blinkrun.engine.bucket import BucketLayout
from blinkrun.torch.exchange import Call, Exchange
from blinkrun.types import Op


class BucketMemory:
    """Views of one piece of arena as `layout` divides it.

    Parameters
    ----------
    layout : BucketLayout
        What lies where.
    named : sequence of (str, torch.Tensor)
        The parameters, in the order of the layout's gradients.
    dtypes : sequence of torch.dtype
        In which the gradient of each travels.
    exchange : Exchange
        Whose arena it is.
    op, scales : int, (float, float)
        Of the reductions.
    device : int or None
        Whose arena the buckets lie in; None for that of the host, where the flags always are: what
        they say is wanted there, without waiting for a device.

    Attributes
    ----------
    flags : torch.Tensor
        A byte for each gradient.
    flags_call : Call
        The reduction of the flags: their maximum.
    """

    def __init__(  # noqa: PLR0913
        self,
        layout: BucketLayout,
        named: Sequence[tuple[str, torch.Tensor]],
        dtypes: Sequence[torch.dtype],
        exchange: Exchange,
        *,
        op: int,
        scales: tuple[float, float],
        device: int | None = None,
    ) -> None:
        self.layout = layout
        self._exchange = exchange
        self._reduction = {"op": op, "scales": scales}
        begin = 0 if device is not None else layout.flags_offset_bytes
        num_bytes = layout.num_bytes - layout.flags_offset_bytes + begin
        arena = exchange.empty_bytes(num_bytes).zero_()  # gaps are reduced too
        self.flags = arena[begin : begin + len(named)]
        if device is not None and layout.buckets:
            arena = exchange.device_bytes(layout.flags_offset_bytes, device).zero_()
        self.flags_call = exchange.call("flags", self.flags, self.flags, op=Op.MAX)
        self._places: list[_Place | None] = [None] * len(named)
        self._results: list[torch.Tensor] = []
        self._labels: list[str] = []
        for number, bucket in enumerate(layout.buckets):
            begin = bucket.offset_bytes
            dtype = dtypes[bucket.slots[0].gradient]
            result = arena[begin : begin + bucket.num_bytes].view(dtype)
            self._results.append(result)
            self._labels.append(f"bucket{number}.{named[bucket.slots[0].gradient][0]}")
            for slot in bucket.slots:
                param = named[slot.gradient][1]
                line = result[slot.start : slot.start + slot.num_elements]
                self._places[slot.gradient] = _Place(line, param.shape, grad_strides(param))
        self._in_place = [self._call(k, result) for k, result in enumerate(self._results)]
        self._elsewhere: dict[int, Call] = {}

    def view(self, index: int) -> torch.Tensor | None:
        """Return the place of a gradient, in the shape of its parameter; None without a bucket."""
        place = self._places[index]
        return None if place is None else place.view()

    def call(self, bucket: int) -> Call:
        """Return the reduction of a bucket."""
        return self._elsewhere.get(bucket) or self._in_place[bucket]

    def read_in_place(self, bucket: int) -> None:
        """Make the reduction of `bucket` read what lies there."""
        self._elsewhere.pop(bucket, None)

    def read_elsewhere(self, bucket: int, grad: torch.Tensor) -> None:
        """Make the next reduction of `bucket`, which has one gradient, read `grad` instead."""
        line = grad.detach().as_strided((grad.numel(),), (1,))
        self._elsewhere[bucket] = self._call(bucket, line)

    def let_go(self) -> None:
        """Forget the gradients that were read elsewhere."""
        self._elsewhere.clear()

    def _call(self, bucket: int, source: torch.Tensor) -> Call:
        result = self._results[bucket]
        return self._exchange.call(self._labels[bucket], source, result, **self._reduction)


class _Place:
    """The place of a gradient, as the tensor that parameters are given for it."""

    __slots__ = ("_address", "_line", "_shape", "_strides", "_view")

    def __init__(self, line: torch.Tensor, shape: torch.Size, strides: tuple[int, ...]) -> None:
        self._line = line
        self._shape, self._strides = shape, strides
        self._view = line.as_strided(shape, strides)
        self._address = self._view.data_ptr()

    def view(self) -> torch.Tensor:
        """Return the tensor; a new one if ``param.grad.data = ...`` has taken the old elsewhere."""
        if self._view.data_ptr() != self._address:
            self._view = self._line.as_strided(self._shape, self._strides)
        return self._view


def is_alike(grad: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether two tensors of one shape hold their elements in the same order, without gaps."""
    return grad.dtype == view.dtype and grad.stride() == view.stride() and not grad.is_neg()


def grad_strides(param: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of the gradient of `param`: its own if they leave no gaps, else C order.

    >>> grad_strides(torch.empty(2, 3).t())
    (1, 3)
    >>> grad_strides(torch.empty(2, 4)[:, ::2])
    (2, 1)
    """
    extents = sorted(zip(param.stride(), param.shape, strict=True))
    dense = itertools.accumulate((size for _, size in extents), lambda a, b: a * b, initial=1)
    if all(size == 1 or stride == want for (stride, size), want in zip(extents, dense)):  # noqa: B905
        return tuple(param.stride())
    return tuple(torch.empty(param.shape, device="meta").stride())
