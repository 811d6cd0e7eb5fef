"""Gradients into arena buckets as backward makes them, buckets into allreduce as they fill.

Which gradients have a place in buckets is learned: the first step reduces each by itself, and what
any rank had then is laid out in the order in which the first rank had it. A gradient that comes for
the first time later is reduced by itself once and has a place from then on. Flags that are reduced
along with the buckets tell all ranks what each of them had, so all take the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from blinkrun import buffers
from blinkrun.engine.bucket import (
    NO_BUCKET,
    BucketLayout,
    BucketProgress,
    GradientSpec,
    plan_buckets,
)
from blinkrun.engine.request import ADASUM
from blinkrun.errors import (
    BlinkrunError,
    GradientOrderError,
    InvalidBufferError,
    NonFiniteError,
    UsageError,
)
from blinkrun.torch import devices
from blinkrun.torch.check import traced
from blinkrun.torch.codec import Codec
from blinkrun.torch.dtypes import DTYPES
from blinkrun.torch.exchange import Exchange, wait_for_all
from blinkrun.torch.forms import ABSENT, DENSE, by_order, dense, form_of, sparse
from blinkrun.torch.memory import BucketMemory, grad_strides, is_alike
from blinkrun.torch.owners import Hook, let_go, take
from blinkrun.torch.sparse import sparse_allreduce_async
from blinkrun.types import Op


class Reducer:
    """The gradients of one set of parameters, reduced over the ranks of a process set once a step.

    Every rank of the set makes it with the same parameters in the same order. A gradient is copied
    once, into its bucket; the allreduce runs there in place, and ``param.grad`` becomes a view of
    the bucket.

    Gradients on a CUDA device have buckets there. They are reduced after what the streams hold in
    which backward has made them; `finish` waits until all ranks have come so far, and lets the
    current stream wait for the results.

    Parameters
    ----------
    exchange : Exchange
        Who reduces, under which names.
    named : sequence of (str, torch.nn.Parameter)
        The parameters, with names for messages.
    op, scales : int, (float, float)
        `Op.AVERAGE` or `Op.SUM`, or `ADASUM`, with which passes are counted and nothing is
        reduced; factors before and after.
    passes : int
        Backward passes that make a gradient ready.
    bucket_bytes : int
        Largest bucket.
    direct_bytes : int or None
        Gradients of this size or larger are not copied; None copies all.
    overlap : bool
        Whether the engine's helper thread reduces a bucket while backward goes on; otherwise all
        buckets are reduced in `finish`.
    groups : sequence of sequences of int
        Parameters, by position, whose gradients are reduced together.
    codec : Codec
        How gradients travel.
    sparse_as_dense : bool
        Whether sparse gradients travel in buckets, instead of as indices and values.

    Attributes
    ----------
    is_done : bool
        Whether the gradients of this step hold their global values.
    """

    def __init__(  # noqa: PLR0913 - keyword-only but for the first two
        self,
        exchange: Exchange,
        named: Sequence[tuple[str, torch.Tensor]],
        *,
        op: Op,
        scales: tuple[float, float],
        passes: int,
        bucket_bytes: int,
        direct_bytes: int | None,
        overlap: bool,
        groups: Sequence[Sequence[int]],
        codec: Codec,
        sparse_as_dense: bool,
    ) -> None:
        self._exchange = exchange
        self._reduction = {"op": op, "scales": scales}
        self._bucket_bytes = bucket_bytes
        self._direct_bytes = direct_bytes
        self._alone = exchange.is_alone or op == ADASUM  # Adasum combines what step() makes
        self._overlap = overlap and not self._alone
        self._groups = groups
        self._codec = codec
        self._sparse_as_dense = sparse_as_dense
        self._names = [name for name, _ in named]
        self._params = [param for _, param in named]
        self._device = devices.index_of_all(named)
        self._streams: list[int] = []  # of the device, in which gradients of this step were made
        self._dtypes = [codec.wire_dtype(name, param) for name, param in named]
        self._specs = [
            GradientSpec(name, DTYPES[dtype], param.numel())
            for (name, param), dtype in zip(named, self._dtypes, strict=True)
        ]
        self._planned = self._plan(range(len(named))[::-1])  # what the first step may change
        self._progress = BucketProgress(self._planned, passes)
        self.is_done = False
        self.is_paused = False
        self._in_flight: list[Any] = []
        self._elsewhere: list[int] = []  # gradients of this step whose results lie apart from them
        self._forms = [ABSENT] * len(named)  # what is known of each gradient, alike on all ranks
        self._lay_out(self._plan(()))
        take(self, self._params)
        self._era = exchange.era()
        self._hooks: dict[int, Any] = {}
        self._hook()

    @property
    def named(self) -> list[tuple[str, torch.Tensor]]:
        """The parameters with their names."""
        return list(zip(self._names, self._params, strict=True))

    @property
    def layout(self) -> BucketLayout:
        """Where the gradients lie now; before the first step, where they are expected to lie."""
        layout = self._progress.layout
        return layout if layout.buckets else self._planned

    @property
    def began(self) -> bool:
        """Whether a backward pass has reached a parameter since the last `finish`."""
        return self._progress.began

    @property
    def has_ready(self) -> bool:
        """Whether a gradient has been ready since the last `finish`."""
        return self._progress.has_arrived

    @property
    def is_accumulating(self) -> bool:
        """Whether more backward passes are to come before gradients are reduced."""
        return self.is_paused or (self.began and not self.has_ready)

    @property
    def trained(self) -> list[int]:
        """The positions of the parameters that were trained at the end of the last step."""
        return sorted(self._hooks)

    def set_passes(self, passes: int) -> None:
        """Change how many backward passes make a gradient ready; between two steps."""
        self._progress = BucketProgress(self._progress.layout, passes)

    def close(self) -> None:
        """Leave the parameters alone from now on."""
        for hook in self._hooks.values():
            hook.remove()
        let_go(self._params)

    def forget(self) -> None:
        """Drop what backward passes have counted so far; nothing may have been ready."""
        self._progress.reset()
        self.is_done = False

    def add(self, index: int) -> None:
        """Take in the gradient of parameter `index`, which a backward pass has just finished."""
        if self.is_paused:
            return
        try:
            is_ready = self._progress.count_pass(index)
        except GradientOrderError as err:
            raise GradientOrderError(f"parameter '{self._names[index]}': {err}") from None
        if is_ready:
            self._arrive(index)

    def ensure_done(self) -> None:
        """Reduce the gradients unless that has been done for this step."""
        if not self.is_done or self._progress.began:
            self.finish()

    def finish(self) -> None:
        """Reduce what is left and wait until every gradient holds its global value."""
        absent = self._progress.absent()
        try:
            if not self._alone:
                for index in absent:
                    self._arrive(index)
                self._reduce_and_wait()
                self._hand_out(absent)
        finally:
            self._end_step()
        self._hook()
        self.is_done = True

    def _end_step(self) -> None:
        """Begin the next step; after an error too, whose gradients are lost."""
        left, self._in_flight = self._in_flight, []
        with contextlib.suppress(BlinkrunError):  # another error is on its way
            wait_for_all(left)
        self._elsewhere.clear()
        self._streams.clear()
        self._progress.reset()
        if not self._alone:
            self._memory.let_go()
            self._memory.flags.copy_(self._usual_flags)

    # ---- gradients into buckets ----------------------------------------------------------------

    def _arrive(self, index: int) -> None:
        """Make what this rank has of a gradient, perhaps nothing, part of the reduction."""
        if not self._alone:
            if not self._progress.has_arrived and self._era != self._exchange.era():
                self._start_over()
            grad = self._params[index].grad
            if grad is not None:
                self._check(index, grad)
            if self._device is not None:
                self._note_stream(self._params[index])
            form = form_of(grad)
            if form != self._forms[index]:
                self._memory.flags[index] = form
            view = self._memory.view(index)
            if view is not None:
                self._take_in(index, grad, view)
        for bucket in self._progress.arrive(index):
            if self._overlap:
                call = self._memory.call(bucket)
                self._in_flight.append(self._exchange.start(call, self._streams))

    def _note_stream(self, param: torch.Tensor) -> None:
        """Remember the stream in which gradients of `param`'s device are made just now."""
        stream = buffers.stream_of(param)
        if stream not in self._streams:
            self._streams.append(stream)

    def _take_in(self, index: int, grad: torch.Tensor | None, view: torch.Tensor) -> None:
        """Make a gradient part of its bucket's reduction, copying it if it is small."""
        bucket = self._progress.layout.bucket_of[index]
        if grad is not None and grad.layout == torch.strided and self._codec.keeps(grad, view):
            if grad.data_ptr() == view.data_ptr():
                self._memory.read_in_place(bucket)
                return
            if self._progress.layout.buckets[bucket].is_direct and is_alike(grad, view):
                self._memory.read_elsewhere(bucket, grad)
                self._elsewhere.append(index)
                return
            view.copy_(grad.detach())
            self._params[index].grad = view
        elif grad is None:
            view.zero_()
        else:
            self._codec.put(index, dense(grad), view)
            self._elsewhere.append(index)
        self._memory.read_in_place(bucket)

    def _check(self, index: int, grad: torch.Tensor) -> None:
        """Raise if a gradient cannot be reduced."""
        at_home = grad.is_cpu if self._device is None else devices.index_of(grad) == self._device
        if not at_home or not grad.is_floating_point():
            raise InvalidBufferError(
                f"parameter '{self._names[index]}' has a gradient of {grad.dtype} on {grad.device} "
                f"by now; floating-point gradients on {devices.place(self._device)}, where it was "
                "when DistributedOptimizer was called, are reduced"
            )
        if grad.numel() != self._specs[index].num_elements:
            raise UsageError(
                f"parameter '{self._names[index]}' has a gradient of shape {tuple(grad.shape)}, "
                f"but had {self._specs[index].num_elements} elements when DistributedOptimizer was "
                "called; call it when the model has its final shape"
            )

    # ---- reductions ----------------------------------------------------------------------------

    def _reduce_and_wait(self) -> None:
        buckets = range(len(self._in_flight), len(self._progress.layout.buckets))
        calls = [self._memory.call(bucket) for bucket in buckets]
        started, self._in_flight = self._in_flight, []
        try:
            self._exchange.run([*calls, self._memory.flags_call], started, self._streams)
        except NonFiniteError as err:
            raise traced(self._exchange, self.named, err) from None

    def _hand_out(self, absent: Sequence[int]) -> None:
        """Give parameters the results that lie elsewhere than their gradients."""
        is_usual = torch.equal(self._memory.flags, self._usual_flags)
        forms = self._forms if is_usual else self._memory.flags.tolist()
        changed = [i for i, form in enumerate(forms) if form > self._forms[i]]
        before = self._forms
        if changed:
            self._forms = [max(form, known) for form, known in zip(forms, before, strict=True)]
        try:
            self._hand_out_as(forms, absent, changed)
        except BaseException:
            self._forms = before  # what came for the first time has not got its place
            raise

    def _hand_out_as(
        self, forms: Sequence[int], absent: Sequence[int], changed: Sequence[int]
    ) -> None:
        """Hand out gradients whose `forms` all ranks know; lay out anew if some have `changed`."""
        for index in dict.fromkeys((*self._elsewhere, *absent, *changed)):
            view = self._memory.view(index)
            if forms[index] != ABSENT and view is not None:
                self._give(index, view)
        others = [i for i in self._outside if forms[i] != ABSENT]
        self._reduce_sparse([i for i in others if not self._is_placed(i)])
        if changed:
            self._place(late=[i for i in others if self._is_placed(i)])

    def _give(self, index: int, view: torch.Tensor) -> None:
        """Make what lies in its bucket the gradient of parameter `index`."""
        param = self._params[index]
        if self._forms[index] == DENSE and self._codec.keeps(param, view):
            param.grad = view
        else:
            self._set(index, view)

    def _set(self, index: int, result: torch.Tensor) -> None:
        """Give parameter `index` a gradient with the values of a `result` that is not its own."""
        param, form = self._params[index], self._forms[index]
        value = self._codec.take(index, result, param)
        if form > DENSE:
            param.grad = value.to_sparse(form - DENSE)
            return
        if param.grad is None or param.grad.layout != torch.strided:
            how = {"dtype": param.dtype, "device": param.device}
            param.grad = torch.empty_strided(param.shape, grad_strides(param), **how)
        param.grad.copy_(value)

    def _reduce_sparse(self, indices: Sequence[int]) -> None:
        """Reduce the gradients that travel as indices and values, each by itself."""
        pending = [
            sparse_allreduce_async(
                sparse(self._params[index], self._forms[index] - DENSE),
                name=f"{self._exchange.prefix}.sparse.{self._names[index]}",
                op=self._reduction["op"],
                process_set=self._exchange.process_set,
            )
            for index in indices
        ]
        for index, handle in zip(indices, pending, strict=True):
            self._params[index].grad = handle().coalesce()

    # ---- places --------------------------------------------------------------------------------

    def _place(self, late: Sequence[int]) -> None:
        """Reduce `late` gradients, which have no place yet, each by itself; lay out anew.

        Buckets are filled in the order in which the first rank has had the gradients of this step.
        """
        results = {index: self._packed(index) for index in late}
        calls = [
            self._exchange.call(f"new.{self._names[index]}", result, result, **self._reduction)
            for index, result in results.items()
        ]
        order = torch.zeros(len(self._params), dtype=torch.int64)
        if self._exchange.is_first:
            arrived = self._progress.arrivals()
            order[list(arrived)] = torch.arange(1, len(arrived) + 1)
        self._exchange.run([*calls, self._exchange.call("order", order, order, op=Op.SUM)])
        for index, result in results.items():
            self._set(index, result)
        placed = [index for index in range(len(self._params)) if self._is_placed(index)]
        self._lay_out(self._plan(by_order(placed, order.tolist())))

    def _packed(self, index: int) -> torch.Tensor:
        """Return this rank's gradient as it travels, in memory of its own; zeros if it has none."""
        param, grad = self._params[index], self._params[index].grad
        packed = torch.zeros(param.shape, dtype=self._dtypes[index], device=param.device)
        if grad is not None:
            self._codec.put(index, dense(grad), packed)
        return packed

    def _is_placed(self, index: int) -> bool:
        """Whether a gradient has, or is to have, a place in a bucket."""
        form = self._forms[index]
        return form == DENSE or (form > DENSE and self._sparse_as_dense)

    def _start_over(self) -> None:
        """Forget all places: not all ranks have seen how others came to theirs."""
        self._era = self._exchange.era()
        self._forms = [ABSENT] * len(self._params)
        self._lay_out(self._plan(()))

    def _plan(self, order: Sequence[int]) -> BucketLayout:
        return plan_buckets(
            self._specs, order, self._bucket_bytes, self._direct_bytes, self._groups
        )

    def _lay_out(self, layout: BucketLayout) -> None:
        """Go over to `layout`, in memory of its own: gradients may still lie in the old."""
        self._progress.move_to(layout)
        if self._alone:
            return
        self._memory = BucketMemory(
            layout,
            self.named,
            self._dtypes,
            self._exchange,
            device=self._device,
            **self._reduction,
        )
        self._usual_flags = torch.tensor(self._forms, dtype=torch.uint8)
        self._outside = [i for i, bucket in enumerate(layout.bucket_of) if bucket == NO_BUCKET]
        self._memory.flags.copy_(self._usual_flags)

    def _hook(self) -> None:
        """Have all parameters call that are trained; some may have been frozen until now."""
        for index, param in enumerate(self._params):
            if index not in self._hooks and param.requires_grad:
                hook = param.register_post_accumulate_grad_hook(Hook(self, index))
                self._hooks[index] = hook
