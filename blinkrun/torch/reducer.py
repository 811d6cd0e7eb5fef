"""Gradients into arena buckets as backward makes them, buckets into allreduce as they fill."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from blinkrun.engine.bucket import (
    BucketLayout,
    BucketProgress,
    GradientSpec,
    plan_buckets,
)
from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.torch.ops import DTYPES
from blinkrun.types import Op

_owners: weakref.WeakValueDictionary[int, Reducer] = weakref.WeakValueDictionary()


class Reducer:
    """The gradients of one set of parameters, reduced over all ranks once a step.

    Every rank makes it with the same parameters in the same order. A gradient is copied once, into
    its bucket; the allreduce runs there in place, and ``param.grad`` becomes a view of the bucket.

    Parameters
    ----------
    world : Communicator
        Who reduces.
    named : sequence of (str, torch.nn.Parameter)
        The parameters, with names for messages.
    op : Op
        `Op.AVERAGE` or `Op.SUM`.
    passes : int
        Backward passes that make a gradient ready.
    bucket_bytes : int
        Largest bucket.
    direct_bytes : int or None
        Gradients of this size or larger are not copied; None copies all.
    overlap : bool
        Whether a helper thread reduces a bucket while backward goes on; otherwise all buckets are
        reduced in `finish`.
    """

    def __init__(  # noqa: PLR0913 - keyword-only but for the first two
        self,
        world: Any,
        named: Sequence[tuple[str, torch.Tensor]],
        *,
        op: Op,
        passes: int,
        bucket_bytes: int,
        direct_bytes: int | None,
        overlap: bool,
    ) -> None:
        self._world = world
        self._op = op
        self._bucket_bytes = bucket_bytes
        self._direct_bytes = direct_bytes
        self._overlap = overlap
        self._names = [name for name, _ in named]
        self._params = [param for _, param in named]
        self._specs = [GradientSpec(n, DTYPES[p.dtype], p.numel()) for n, p in named]
        self._order_known = False
        # Reversed: backward reaches the last layers first. The first step shows the real order.
        layout = self._plan(range(len(named))[::-1])
        self._progress = BucketProgress(layout, passes)
        self._alone = world.size == 1
        if not self._alone:
            self._arena = torch.from_numpy(world.empty_bytes(layout.num_bytes))
            self._lay_out(layout)
        self._in_flight: dict[int, Any] = {}
        _owners.update((id(param), self) for param in self._params)
        self._hooks = [
            param.register_post_accumulate_grad_hook(_Hook(self, i))
            for i, param in enumerate(self._params)
        ]

    @property
    def layout(self) -> BucketLayout:
        """Where the gradients lie now."""
        return self._progress.layout

    @property
    def began(self) -> bool:
        """Whether a backward pass has reached a parameter since the last `finish`."""
        return self._progress.began

    @property
    def has_released(self) -> bool:
        """Whether a bucket has been full since the last `finish`."""
        return self._progress.num_released > 0

    def close(self) -> None:
        """Leave the parameters alone from now on."""
        for hook, param in zip(self._hooks, self._params, strict=True):
            hook.remove()
            _owners.pop(id(param), None)

    def forget(self) -> None:
        """Drop what backward passes have counted so far; nothing may have been released."""
        self._progress.reset()

    def add(self, index: int) -> None:
        """Take in the gradient of parameter `index`, which a backward pass has just finished."""
        try:
            is_ready = self._progress.count_pass(index)
        except UsageError as err:
            raise UsageError(f"parameter '{self._names[index]}': {err}") from None
        if not is_ready:
            return
        grad = self._params[index].grad
        if grad.layout != torch.strided:
            raise InvalidBufferError(
                f"parameter '{self._names[index]}' has a sparse gradient; only dense gradients are "
                "reduced, make the layer with sparse=False"
            )
        if not self._alone:
            self._take_in(index, grad)
        self._release(self._progress.arrive(index))

    def finish(self) -> None:
        """Reduce what is left and wait until every gradient holds its global value."""
        absent = self._progress.absent()
        for index in absent:
            if not self._alone:
                self._take_in_absent(index)
            self._release(self._progress.arrive(index))
        if not self._alone:
            self._reduce_and_wait()
            self._hand_out(absent)
            self._learn_order()
        self._progress.reset()

    def _plan(self, order: Sequence[int]) -> BucketLayout:
        return plan_buckets(self._specs, order, self._bucket_bytes, self._direct_bytes)

    def _lay_out(self, layout: BucketLayout) -> None:
        """Make the views of the arena that `layout` describes."""
        self._arena.zero_()  # the gaps between slots are reduced too
        begin = layout.flags_offset_bytes
        self._flags = self._arena[begin : begin + len(self._params)].fill_(1)
        self._views: list[torch.Tensor] = [self._arena] * len(self._params)
        self._results: list[torch.Tensor] = []
        for bucket in layout.buckets:
            begin = bucket.offset_bytes
            dtype = self._params[bucket.slots[0].gradient].dtype
            result = self._arena[begin : begin + bucket.num_bytes].view(dtype)
            self._results.append(result)
            for slot in bucket.slots:
                param = self._params[slot.gradient]
                line = result[slot.start : slot.start + slot.num_elements]
                self._views[slot.gradient] = line.as_strided(param.shape, grad_strides(param))
        # What each bucket's collective reads: the bucket, or a gradient where backward has put it.
        self._sources = list(self._results)

    def _take_in(self, index: int, grad: torch.Tensor) -> None:
        """Make a gradient part of its bucket's collective, copying it if it is small."""
        view = self._views[index]
        bucket = self.layout.bucket_of[index]
        if grad.data_ptr() == view.data_ptr():
            self._sources[bucket] = self._results[bucket]
        elif self.layout.buckets[bucket].is_direct and is_alike(grad, view):
            self._sources[bucket] = grad.detach().as_strided((grad.numel(),), (1,))
        else:
            self._sources[bucket] = self._results[bucket]
            view.copy_(grad.detach())
            self._params[index].grad = view

    def _take_in_absent(self, index: int) -> None:
        """Make zeros of a gradient that this rank does not have."""
        grad = self._params[index].grad
        if grad is not None:
            self._take_in(index, grad)
        else:
            self._take_in(index, self._views[index].zero_())
            self._flags[index] = 0

    def _release(self, buckets: range) -> None:
        """Begin to reduce buckets that are full, if a helper thread does it."""
        if self._overlap and not self._alone:
            for bucket in buckets:
                self._in_flight[bucket] = self._world.allreduce_async(
                    self._sources[bucket], self._op, self._results[bucket]
                )

    def _reduce_and_wait(self) -> None:
        for bucket, (source, result) in enumerate(zip(self._sources, self._results, strict=True)):
            if self._overlap:
                self._in_flight.pop(bucket).wait()
            else:
                self._world.allreduce(source, self._op, result)
        self._world.allreduce(self._flags, Op.MAX, self._flags)

    def _hand_out(self, absent: Sequence[int]) -> None:
        """Make parameters own the results that lie elsewhere than their gradients."""
        for bucket in self.layout.buckets:
            index = bucket.slots[0].gradient
            if bucket.is_direct and self._params[index].grad is not None:
                self._params[index].grad = self._views[index]
        self._sources = list(self._results)  # lets go of the gradients that were read
        for index in absent:
            param = self._params[index]
            if param.grad is None and self._flags[index].item():
                param.grad = self._views[index]
        if absent:
            self._flags.fill_(1)

    def _learn_order(self) -> None:
        """After the first step, lay the buckets out in the order in which rank 0 filled them."""
        if self._order_known:
            return
        self._order_known = True
        layout = self._plan(self._world.broadcast_object(self._progress.order(), root=0))
        if layout == self.layout:
            return
        grads = [None if p.grad is None else p.grad.clone() for p in self._params]
        self._lay_out(layout)
        self._progress = BucketProgress(layout, self._progress.passes)
        for param, view, grad in zip(self._params, self._views, grads, strict=True):
            if grad is not None:
                param.grad = view.copy_(grad)


class _Hook:
    """What a parameter calls when a backward pass has added to its gradient.

    It does not keep the reducer alive: parameters outlive an optimizer that is thrown away.
    """

    __slots__ = ("_index", "_reducer")

    def __init__(self, reducer: Reducer, index: int) -> None:
        self._reducer = weakref.ref(reducer)
        self._index = index

    def __call__(self, param: torch.Tensor) -> None:
        reducer = self._reducer()
        if reducer is not None:
            reducer.add(self._index)


def has_owner(param: torch.Tensor) -> bool:
    """Whether a reducer that is still in use has taken `param`."""
    if id(param) in _owners:
        gc.collect()  # an optimizer in a reference cycle may be gone but for this
    return id(param) in _owners


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
