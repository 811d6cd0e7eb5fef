"""The process group: torch's calls, each brought to a lane that carries it out in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp, Store, Work

from blinkrun import env
from blinkrun.adapter.overlap import choose_overlap
from blinkrun.communicator import Communicator
from blinkrun.errors import NotInitializedError
from blinkrun.torch.distributed import streams
from blinkrun.torch.distributed.arguments import (
    as_list,
    inner_list,
    is_within,
    only_one,
    op_of,
    options_and_root,
    pairs_of,
    split_rows,
)
from blinkrun.torch.distributed.calls import Calls, checked
from blinkrun.torch.distributed.identity import NamedGroup
from blinkrun.torch.distributed.messages import Messages
from blinkrun.torch.distributed.reductions import reduction
from blinkrun.torch.distributed.sparse import allreduce_sparse
from blinkrun.torch.distributed.streams import DeviceWork, Together, place_of
from blinkrun.torch.distributed.work import DoneWork, Lane
from blinkrun.types import Rank

END_GRACE_S = 0.5  # what a call under way gets to end by itself when the process ends
_in_backward = torch._C._current_graph_task_id  # -1 where no backward is under way


class BlinkProcessGroup(NamedGroup):
    """Collectives of torch.distributed over spanning trees, under NCCL's contract.

    All ranks of the group make the same calls in the same order; nothing is negotiated. Ranks that
    disagree about a call all get a `MismatchError` that says what each one called. What a rank
    waits for is bounded by the timeout of the group.

    A call that is waited for at once runs in the caller's thread. One with ``async_op=True`` runs
    in a helper thread of the group, but for those that hooks make while backward runs: they run
    in the hook's thread where the ranks fill the cores of the machine, since a helper would only
    take from the computation what it hides of the communication (`BLINKRUN_OVERLAP` decides
    otherwise).

    A call on CUDA tensors is put into a stream and returns: into the current one, or with
    ``async_op=True`` into one of the group's own, which `Work.wait` orders the current one behind.
    What goes wrong there is raised by the next call.

    Parameters
    ----------
    store : Store
        Of the group.
    communicator : Communicator
        Of the group's ranks; closed by `shutdown`.
    names : sequence of Rank, optional
        Numbers of the group's ranks in the default group.

    Attributes
    ----------
    communicator : Communicator
        As given.
    global_rank : Rank
        Number of this process in the default group.
    """

    def __init__(
        self, store: Store, communicator: Communicator, names: Sequence[Rank] | None = None
    ) -> None:
        super().__init__(store, communicator.rank, communicator.size)
        self.communicator = communicator
        self._rank = communicator.rank
        self.global_rank = names[self._rank] if names else self._rank
        self._lane = Lane(f"blinkrun-group-{communicator.rank}")
        self._calls = Calls(communicator, self._lane)
        self._messages = Messages(communicator)
        self._overlaps: bool | None = None
        self._batch: list[Work] | None = None  # of a coalescing block that is open
        self._sides: dict[int, streams.Side] = {}  # own streams, by device

    # ---- reductions ----------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Reduce tensors over all ranks, in place."""
        del timeout
        tensors = as_list(tensors)
        how = reduction(op_of(opts))
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                return self._start(
                    lambda: _each(lambda t: allreduce_sparse(self._calls, t, how), tensors),
                    tensors,
                    "allreduce",
                    opts,
                )
            checked(tensor, "allreduce")
        calls = self._calls
        if len(tensors) == 1:
            tensor = tensors[0]
            return self._start(lambda: calls.allreduce(tensor, how), tensors, "allreduce", opts)
        return self._start(
            lambda: _each(lambda t: calls.allreduce(t, how), tensors), tensors, "allreduce", opts
        )

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """Reduce each of the tensors over all ranks, in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Any, *args: Any, **kwargs: Any) -> Work:
        """Reduce a tensor into that of the root; the others' stay as they are."""
        opts, root = options_and_root(args, kwargs, self._calls.size)
        tensor = checked(only_one(tensors, "reduce"), "reduce")
        op = kwargs.get("op", args[1] if len(args) > 1 else None) if opts is None else op_of(opts)
        how = reduction(ReduceOp.SUM if op is None else op)
        return self._start(lambda: self._calls.reduce(tensor, how, root), [tensor], "reduce", opts)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> Work:
        """Reduce tensor r of every rank's list into the output of rank r."""
        del timeout
        output = checked(only_one(outputs, "reduce_scatter"), "reduce_scatter")
        sources = inner_list(inputs, "reduce_scatter")
        how = reduction(op_of(opts))
        return self._start(
            lambda: self._calls.reduce_scatter_list(output, sources, how),
            [output],
            "reduce_scatter",
            opts,
            sources,
        )

    def _reduce_scatter_base(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Work:
        checked(output, "reduce_scatter_tensor")
        checked(source, "reduce_scatter_tensor")
        how = reduction(op_of(opts))
        return self._start(
            lambda: self._calls.reduce_scatter(output, source, how),
            [output],
            "reduce_scatter_tensor",
            opts,
            [source],
        )

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """Reduce and scatter several tensors."""
        pairs = pairs_of(outputs, inputs, "reduce_scatter_tensor")
        how = reduction(op_of(opts))
        return self._start(
            lambda: _each(lambda pair: self._calls.reduce_scatter(*pair, how), pairs),
            list(outputs),
            "reduce_scatter_tensor",
            opts,
            inputs,
        )

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # ---- moves ---------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, *args: Any, **kwargs: Any) -> Work:
        """Give a tensor the values that it has on the root."""
        opts, root = options_and_root(args, kwargs, self._calls.size)
        tensor = checked(only_one(tensors, "broadcast"), "broadcast")
        return self._start(lambda: self._calls.broadcast(tensor, root), [tensor], "broadcast", opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Put every rank's tensor into a list, whose tensors may differ in size."""
        del timeout
        source = checked(only_one(inputs, "all_gather"), "all_gather")
        targets = inner_list(outputs, "all_gather")
        return self._start(
            lambda: self._calls.all_gather_list(targets, source),
            targets,
            "all_gather",
            opts,
            [source],
        )

    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        checked(output, "all_gather_into_tensor")
        checked(source, "all_gather_into_tensor")
        return self._start(
            lambda: self._calls.all_gather(output, source),
            [output],
            "all_gather_into_tensor",
            opts,
            [source],
        )

    all_gather_single = _allgather_base

    def allgather_coalesced(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> Work:
        """Put every rank's tensors into lists: list r has all tensors of rank r."""
        for tensor in (*inputs, *(each for row in outputs for each in row)):
            checked(tensor, "all_gather")

        def body() -> None:
            for at, source in enumerate(inputs):
                self._calls.all_gather_list([row[at] for row in outputs], source)

        results = [each for row in outputs for each in row]
        return self._start(body, results, "all_gather", opts, inputs)

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """Gather several tensors, each into one."""
        pairs = pairs_of(outputs, inputs, "all_gather_into_tensor")
        return self._start(
            lambda: _each(lambda pair: self._calls.all_gather(*pair), pairs),
            list(outputs),
            "all_gather_into_tensor",
            opts,
            inputs,
        )

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def alltoall_base(  # noqa: PLR0913, PLR0917 - torch's arguments
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        timeout: Any = None,
    ) -> Work:
        """Send slices of a tensor to the ranks, along the first dimension; splits may differ."""
        del timeout
        checked(output, "all_to_all_single")
        checked(source, "all_to_all_single")
        calls = self._calls
        if not output_split_sizes and not input_split_sizes:

            def body() -> None:
                calls.all_to_all(output, source)

        else:
            targets = split_rows(output, output_split_sizes, self.size(), "output")
            sources = split_rows(source, input_split_sizes, self.size(), "input")

            def body() -> None:
                calls.all_to_all_list(targets, sources)

        return self._start(body, [output], "all_to_all_single", opts, [source])

    all_to_all_single = alltoall_base

    def alltoall(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
        timeout: Any = None,
    ) -> Work:
        """Send tensor r of a list to rank r; sizes may differ."""
        del timeout
        for tensor in (*outputs, *inputs):
            checked(tensor, "all_to_all")
        targets, sources = list(outputs), list(inputs)
        return self._start(
            lambda: self._calls.all_to_all_list(targets, sources),
            targets,
            "all_to_all",
            opts,
            sources,
        )

    def gather(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Work:
        """Put every rank's tensor into a list of the root."""
        opts, root = options_and_root(args, kwargs, self._calls.size)
        source = checked(only_one(inputs, "gather"), "gather")
        targets = inner_list(outputs, "gather") if root == self._rank else []
        return self._start(
            lambda: self._calls.gather(targets, source, root), targets, "gather", opts, [source]
        )

    def scatter(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Work:
        """Give every rank its tensor of the root's list."""
        opts, root = options_and_root(args, kwargs, self._calls.size)
        output = checked(only_one(outputs, "scatter"), "scatter")
        sources = inner_list(inputs, "scatter") if root == self._rank else []
        return self._start(
            lambda: self._calls.scatter(output, sources, root), [output], "scatter", opts, sources
        )

    # ---- messages ------------------------------------------------------------------------------

    def send(self, tensors: Any, dst: Rank, tag: int = 0) -> Work:
        """Send a tensor to one rank; independent of the collectives."""
        tensor = checked(only_one(tensors, "send"), "send")
        return self._noted(self._messages.send(tensor, dst, tag, at_once=is_within("send")))

    def recv(self, tensors: Any, src: Rank, tag: int = 0) -> Work:
        """Receive a tensor from one rank."""
        tensor = checked(only_one(tensors, "recv"), "recv")
        return self._noted(self._messages.recv(tensor, src, tag, at_once=is_within("recv")))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receive a tensor from whichever rank sends one with this tag first."""
        tensor = checked(only_one(tensors, "recv"), "recv")
        return self._noted(self._messages.recv_any(tensor, tag, at_once=is_within("recv")))

    # ---- order and end -------------------------------------------------------------------------

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        """Return when all ranks have called it."""
        del timeout
        return self._start(self._barrier, [], "barrier", opts)

    def _barrier(self) -> None:
        for side in self._sides.values():  # what the group has on devices is through as well
            side.synchronize()
        self.communicator.synchronize()
        self._calls.barrier()

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return when all ranks have called it; the error after `timeout` names the late ones."""
        del wait_all_ranks  # all late ranks are named in any case
        group = self.communicator.executor.group
        if timeout is not None:
            is_span = isinstance(timeout, timedelta)
            group.set_timeout(timeout.total_seconds() if is_span else float(timeout))
        try:
            self.barrier(_Now()).wait()
        finally:
            if timeout is not None and not self.communicator.is_closed:
                group.set_timeout(self.communicator.executor.timeout_s)

    def set_timeout(self, timeout: timedelta) -> None:
        """Let calls wait at most `timeout` from now on; all ranks should do so."""
        self.communicator.executor.timeout_s = timeout.total_seconds()
        self.communicator.executor.group.set_timeout(timeout.total_seconds())
        if self.communicator.devices is not None:
            self.communicator.devices.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _start_coalescing(self, device: torch.device) -> None:
        del device
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> Work:
        del device
        batch, self._batch = self._batch or [], None

        def wait_for_all() -> None:
            for work in batch:
                work.wait()

        if any(isinstance(work, DeviceWork) for work in batch):
            return Together(batch)
        if all(work.is_completed() for work in batch):
            wait_for_all()
            return DoneWork([])
        return Lane("blinkrun-batch").submit(wait_for_all, [], "a coalesced batch")

    def shutdown(self) -> None:
        """Leave the group, after the collectives under way; harmless if called again."""
        if self.communicator.is_closed:
            return
        error = NotInitializedError("a collective of a process group that was destroyed")
        self._lane.refuse(error)
        self._lane.join(self.communicator.executor.timeout_s)
        self._end_lanes(error, "destroyed a process group")
        self.communicator.close()

    def abort(self) -> None:
        """End the group on all ranks: what is under way fails everywhere."""
        if not self.communicator.is_closed:
            self.communicator.executor.group.abort(f"rank {self.global_rank} aborted its group")
            self.shutdown()

    def end(self, reason: str | None) -> None:
        """Leave at the end of the process, without waiting for others; `reason` if it fails."""
        if self.communicator.is_closed:
            return
        group = self.communicator.executor.group
        if reason is not None:
            group.abort(reason)
        self._end_lanes(NotInitializedError("a collective of a process that ends"), "ended")
        group.leave()

    def _end_lanes(self, error: BaseException, what: str) -> None:
        """End the helper threads: the interpreter kills those that come back to it at its end.

        A call of theirs that does not end by itself is given up, on all ranks.
        """
        lanes = [self._lane, *self._messages.lanes()]
        for lane in lanes:
            lane.refuse(error)
        are_over = [lane.join(END_GRACE_S) for lane in lanes]
        if not all(are_over):
            reason = f"rank {self.global_rank} {what} while a call of its was under way"
            self.communicator.executor.group.abort(reason)
            for lane in lanes:
                lane.join(END_GRACE_S)

    def _start(
        self,
        body: Callable[[], Any],
        results: list[torch.Tensor],
        what: str,
        opts: Any,
        given: Sequence[torch.Tensor] = (),
    ) -> Work:
        """Carry out a collective, now or behind the caller's back as `opts` and the machine say."""
        device = place_of([*results, *given], what)
        self._sequence += 1
        # Options say async unless told otherwise: DDP's do, and those that a script leaves out.
        is_async = opts is not None and opts.asyncOp
        if device is not None:
            work: Work = self._on_device(body, results, what, given, device, is_async)
        elif is_async and (_in_backward() == -1 or self._is_overlapping()):
            work = self._lane.submit(body, results, what)
        else:
            work = self._lane.call(body, results, what)
        return self._noted(work)

    def _on_device(  # noqa: PLR0913, PLR0917 - those of `_start`
        self,
        body: Callable[[], Any],
        results: list[torch.Tensor],
        what: str,
        given: Sequence[torch.Tensor],
        device: int,
        is_async: bool,
    ) -> Work:
        """Put a collective into a stream, after what the lane has before it."""
        if device not in self._sides:
            self._sides[device] = streams.Side(device)
        side, end = self._sides[device], None
        tensors = [*results, *given]

        def aside() -> None:
            nonlocal end
            end = side.run(body, tensors)

        is_plain = all(each.layout is torch.strided for each in tensors)
        act = aside if is_async and is_plain else body
        if self._lane.is_behind:  # the helper thread has a current stream of its own
            act = streams.in_current(act, device)
        self._lane.call(act, results, what)
        return DeviceWork(side, end, results)

    def _noted(self, work: Work) -> Work:
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _is_overlapping(self) -> bool:
        if self._overlaps is None:
            wanted = env.choice(env.OVERLAP, ("auto", "on", "off"), "auto")
            self._overlaps = choose_overlap(
                wanted,
                cores=self.communicator.cores,
                local_size=self.communicator.local_size,
                cross_size=self.communicator.cross_size,
                threads=torch.get_num_threads(),
            ).on
        return self._overlaps


class _Now:
    """Options of a call that is waited for at once."""

    asyncOp = False  # noqa: N815 - torch's name


def _each(call: Callable[[Any], Any], items: Sequence[Any]) -> None:
    for item in items:
        call(item)
