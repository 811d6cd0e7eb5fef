"""Collectives on buffers, under NCCL's contract: every rank makes the same calls in the same order.

Nothing is negotiated. Ranks that disagree about a call (kind, count, dtype, operation, root) all
get a `MismatchError` that says what each one called, before anything has moved.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from blinkrun.buffers import is_torch, numpy_dtype, view
from blinkrun.calls import barrier_request, check_root, make_request
from blinkrun.comm.base import ControlPlane
from blinkrun.comm.world import World
from blinkrun.devices import Devices
from blinkrun.errors import InvalidBufferError, NotInitializedError
from blinkrun.executors import native
from blinkrun.executors.base import Executor, Request, Tuner
from blinkrun.executors.journal import NativeJournal
from blinkrun.handle import Handle
from blinkrun.messages import PointToPoint
from blinkrun.types import Collective, Op, Rank

if TYPE_CHECKING:
    from blinkrun.planner.hosts_plan import HostsPlan
    from blinkrun.planner.plan import Plan
    from blinkrun.schedule.ir import Addressing


class Communicator(PointToPoint):
    """Collectives among all ranks of a world.

    Every method but the properties and the messages between two ranks (`PointToPoint`: send, recv,
    exchange, arrived) is collective: all ranks must call it, in the same order, with
    arguments that agree. A call waits for the slowest rank, at most the timeout given to `init`;
    then all ranks get a `CollectiveTimeoutError` that names the missing ones. Results are bitwise
    equal on all ranks and from run to run.

    Arrays are numpy arrays, torch tensors, or anything with the buffer protocol or DLPack:
    C-contiguous, of a type in `blinkrun.types.DType`. With ``out=None`` a new array is returned
    (a torch tensor for a torch tensor, in the arena if the input is there); ``out=array`` works in
    place. Errors in the arguments are `InvalidBufferError`s, raised before anything moves.

    Where the arrays are on CUDA devices (torch tensors, cupy arrays, ``__cuda_array_interface__``),
    on all ranks, a call is put into the current stream of the arrays' library and returns at once:
    what comes later in that stream sees the result. What goes wrong on a device is raised by a
    later call or by `synchronize`. Such an array may be non-contiguous where it is not `out` too.
    """

    def __init__(
        self,
        control: ControlPlane,
        world: World,
        executor: Executor,
        cores: int,
        names: Sequence[Rank] | None = None,
    ) -> None:
        self._control = control
        self._world = world
        self._executor: Executor | None = executor
        self._fast = executor.fast
        self._cores = cores
        self._devices = Devices(control, world, executor, names)
        # Jobs and the memory that they work on: a handle may be dropped before its job is through.
        self._in_flight: deque[tuple[Any, Request]] = deque()
        self._at_close: list[Callable[[], None]] = []

    # ---- who -----------------------------------------------------------------------------------

    @property
    def rank(self) -> Rank:
        """The number of this rank, 0 to size - 1."""
        return self._world.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._world.size

    @property
    def local_rank(self) -> int:
        """Index of this rank on its host."""
        return self._world.local_rank

    @property
    def local_size(self) -> int:
        """Number of ranks on this host."""
        return self._world.local_size

    @property
    def cross_rank(self) -> int:
        """Index of this rank's host."""
        return self._world.cross_rank

    @property
    def cross_size(self) -> int:
        """Number of hosts."""
        return self._world.cross_size

    @property
    def cores(self) -> int:
        """Cores that this rank's host offers to the job."""
        return self._cores

    @property
    def control(self) -> ControlPlane:
        """What the ranks found each other with; its calls are collective and have no deadline."""
        return self._control

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, by the program or by shutdown."""
        return self._executor is None

    @property
    def host_of(self) -> tuple[int, ...]:
        """Index of every rank's host: its `cross_rank`."""
        return self._world.host_of

    @property
    def hosts(self) -> tuple[str, ...]:
        """Name of every rank's host."""
        return self._world.hosts

    @property
    def plan(self) -> Plan | HostsPlan:
        """What the ranks run on."""
        return self.executor.plan

    @property
    def executor(self) -> Executor:
        """The executor; raises NotInitializedError after shutdown."""
        if self._executor is None:
            raise NotInitializedError("a collective")
        return self._executor

    def describe(self) -> str:
        """Return a few lines about ranks, plan and kernels, for people."""
        here = f"{self._cores} cores, {native.isa()} kernels"
        more = "" if self.devices is None else f"\non devices: {self.devices.plan.describe()}"
        if self.cross_size == 1:
            return f"{self.size} ranks on 1 host, {here}\n{self.plan.describe()}{more}"
        hosts = zip(self._world.host_names, self._world.groups, strict=True)
        where = ", ".join(f"{name}: {' '.join(map(str, ranks))}" for name, ranks in hosts)
        return (
            f"{self.size} ranks on {self.cross_size} hosts ({where}), here {here}\n"
            f"{self.plan.describe()}{more}"
        )

    # ---- memory --------------------------------------------------------------------------------

    def empty(
        self, shape: int | tuple[int, ...], dtype: Any = "float32", *, device: bool = False
    ) -> Any:
        """Return an uninitialised array in the arena, numpy's or a `DeviceArray`. Not collective.

        Collectives on arena arrays move no copies: peers read and write them where they are.
        The arena of the device is there once the ranks have made a call on devices.
        """
        wanted = numpy_dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if device:
            return self._device_array(shape, wanted)
        num_bytes = math.prod(shape) * wanted.itemsize
        return self.empty_bytes(num_bytes).view(wanted).reshape(shape)

    def empty_bytes(self, num_bytes: int, *, device: bool = False) -> Any:
        """Return `num_bytes` of arena memory as uint8, aligned to 64 bytes. Not collective."""
        if num_bytes < 0:
            raise InvalidBufferError(f"cannot make {num_bytes} bytes")
        if device:
            return self._device_bytes(num_bytes)
        return self.executor.empty_bytes(num_bytes)

    # ---- collectives ---------------------------------------------------------------------------

    def allreduce(
        self,
        array: Any,
        op: Op = Op.SUM,
        out: Any = None,
        *,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> Any:
        """Return the reduction of every rank's `array`, the same on all ranks.

        Parameters
        ----------
        array : array of any shape
            This rank's contribution; all ranks give the same number of elements and dtype.
        op : Op
            Sum, Average, Min, Max or Product.
        out : array, optional
            Where the result goes; `array` itself for in place.
        prescale, postscale : float
            Factors of every contribution and of the result.
        """
        if out is None:
            out = self._like(array)
        if prescale == postscale == 1.0 and self._run_arrays(0, array, out, op):
            return out
        scales = (prescale, postscale)
        self._run_slowly(Collective.ALLREDUCE, array, out, op=op, scales=scales)
        return out

    def broadcast(self, array: Any, root: Rank = 0, out: Any = None) -> Any:
        """Return `root`'s `array` on every rank; other ranks' arrays give shape and dtype only."""
        if out is None:
            out = self._like(array)
        if not self._run_arrays(1, array, out, 0, root):
            self._run_slowly(Collective.BROADCAST, array, out, root=root)
        return out

    def reduce(
        self,
        array: Any,
        root: Rank = 0,
        op: Op = Op.SUM,
        out: Any = None,
        *,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> Any:
        """Return the reduction at `root` and None elsewhere; `out` counts at the root only."""
        out = self._reduce_out(array, root, out)
        scales = (prescale, postscale)
        if scales == (1.0, 1.0) and self._run_arrays(2, array, out, op, root):
            return out
        self._run_slowly(Collective.REDUCE, array, out, op=op, root=root, scales=scales)
        return out

    def allgather(self, array: Any, out: Any = None) -> Any:
        """Return all ranks' arrays one after the other along the first axis (a scalar counts as 1).

        In place: `array` is slice `rank` of `out`.
        """
        if out is None:
            out = self._like(array, rows=self.size, per=1)
        if not self._run_arrays(3, array, out):
            self._run_slowly(Collective.ALLGATHER, array, out)
        return out

    def reducescatter(
        self,
        array: Any,
        op: Op = Op.SUM,
        out: Any = None,
        *,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> Any:
        """Return slice `rank` of the reduction; the first axis must be a multiple of the size.

        In place: `out` is slice `rank` of `array`.
        """
        if out is None:
            out = self._like(array, rows=1, per=self.size)
        scales = (prescale, postscale)
        if scales == (1.0, 1.0) and self._run_arrays(4, array, out, op):
            return out
        self._run_slowly(Collective.REDUCESCATTER, array, out, op=op, scales=scales)
        return out

    def alltoall(self, array: Any, out: Any = None) -> Any:
        """Send slice i of `array` (along the first axis) to rank i; return what came, by rank."""
        if out is None:
            out = self._like(array, rows=1, per=1)
        if not self._run_arrays(6, array, out):
            self._run_slowly(Collective.ALLTOALL, array, out)
        return out

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.run_request(barrier_request())

    def allreduce_async(
        self,
        array: Any,
        op: Op = Op.SUM,
        out: Any = None,
        *,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> Handle:
        """Start `allreduce` on the helper thread; `Handle.wait` returns its result."""
        out = self._like(array) if out is None else out
        scales = (prescale, postscale)
        request = self._request(Collective.ALLREDUCE, array, out, op=op, scales=scales)
        return self._submit(request, out)

    def broadcast_async(self, array: Any, root: Rank = 0, out: Any = None) -> Handle:
        """Start `broadcast` on the helper thread; `Handle.wait` returns its result."""
        out = self._like(array) if out is None else out
        return self._submit(self._request(Collective.BROADCAST, array, out, root=root), out)

    def reduce_async(
        self,
        array: Any,
        root: Rank = 0,
        op: Op = Op.SUM,
        out: Any = None,
        *,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> Handle:
        """Start `reduce` on the helper thread; `Handle.wait` returns its result."""
        out = self._reduce_out(array, root, out)
        scales = (prescale, postscale)
        request = self._request(Collective.REDUCE, array, out, op=op, root=root, scales=scales)
        return self._submit(request, out)

    def allgather_async(self, array: Any, out: Any = None) -> Handle:
        """Start `allgather` on the helper thread; `Handle.wait` returns its result."""
        out = self._like(array, rows=self.size, per=1) if out is None else out
        return self._submit(self._request(Collective.ALLGATHER, array, out), out)

    def reducescatter_async(
        self,
        array: Any,
        op: Op = Op.SUM,
        out: Any = None,
        *,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> Handle:
        """Start `reducescatter` on the helper thread; `Handle.wait` returns its result."""
        out = self._like(array, rows=1, per=self.size) if out is None else out
        scales = (prescale, postscale)
        request = self._request(Collective.REDUCESCATTER, array, out, op=op, scales=scales)
        return self._submit(request, out)

    def alltoall_async(self, array: Any, out: Any = None) -> Handle:
        """Start `alltoall` on the helper thread; `Handle.wait` returns its result."""
        out = self._like(array, rows=1, per=1) if out is None else out
        return self._submit(self._request(Collective.ALLTOALL, array, out), out)

    def barrier_async(self) -> Handle:
        """Start `barrier` on the helper thread."""
        return self._submit(barrier_request(), None)

    # ---- objects -------------------------------------------------------------------------------

    def broadcast_object(self, item: Any, root: Rank = 0) -> Any:
        """Return `root`'s `item`, pickled through MPI; for small things."""
        check_root(root, self.size)
        self.barrier()  # with its deadline and checks: MPI alone would wait for ever
        return self._control.broadcast(item, root)

    def allgather_object(self, item: Any) -> list[Any]:
        """Return every rank's `item`, pickled through MPI; for small things."""
        self.barrier()
        return self._control.allgather(item)

    # ---- for the engine ------------------------------------------------------------------------

    @cached_property
    def journal(self) -> NativeJournal:
        """Messages of all ranks in one order; senders are ranks of this communicator."""
        return NativeJournal(self.executor.group, self.executor.timeout_s)

    def run_request(self, request: Request, *, may_spin: bool = True) -> None:
        """Run a call of `calls.make_request` in this thread.

        A thread that has no core for itself says ``may_spin=False``: it leaves its core to others
        while it waits for ranks.

        A call on a device is put into its stream, and this returns at once.
        """
        if request.stream is not None:
            self.executor  # noqa: B018 - raises after shutdown
            self._devices.run(request)
            return
        try:
            self.executor.run(request, may_spin=may_spin)
        except native.Failure as failure:
            self.fail(failure)

    @staticmethod
    def pack(dst: int, parts: Sequence[tuple[int, int, int]]) -> None:
        """Copy parts (address, bytes, offset) to their offsets from address `dst`. Not collective.

        Nothing is checked: the memory must be there, and parts must not overlap.
        """
        native.pack(dst, list(parts))

    @staticmethod
    def unpack(src: int, parts: Sequence[tuple[int, int, int]]) -> None:
        """Copy from offsets of address `src` to parts (address, bytes, offset). Not collective."""
        native.unpack(src, list(parts))

    # ---- inside --------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no further part; queued calls are finished first. Not collective."""
        executor, self._executor = self._executor, None
        self._fast = _closed
        if executor is not None:
            self._devices.close()
            executor.group.close()
            executor.group.leave()
            self._in_flight.clear()
            while self._at_close:
                self._at_close.pop()()

    def tune(self, tuners: Mapping[Addressing, Tuner]) -> None:
        """Let tuners choose the chunks of calls; see `Executor.tune`. Not collective."""
        self.executor.tune(tuners)
        self._fast = self.executor.fast

    def at_close(self, function: Callable[[], None]) -> None:
        """Have `function` called once, after this rank has left; latest first."""
        self._at_close.append(function)

    def fail(self, failure: Exception) -> NoReturn:
        """Raise our exception for a failure of the core."""
        timeout_s = self._executor.timeout_s if self._executor else 0.0
        raise self._devices.explained(native.translate(failure, timeout_s)) from None

    def _run_arrays(
        self, collective: int, array: Any, out: Any, op: int = 0, root: Rank = 0
    ) -> bool:
        """Run a call on numpy arrays, or one again on a device; False if it needs the long way.

        `collective` is a `Collective` as a number: looking up the member costs as much as a call.
        """
        try:
            return self._fast(collective, array, out, op, root) or self._devices.again(
                collective, array, out, op, root
            )
        except native.Failure as failure:
            self.fail(failure)

    def _run_slowly(self, collective: Collective, array: Any, out: Any, **how: Any) -> None:
        """Run a call after all checks, so that the next one like it need not be checked."""
        request = self._request(collective, array, out, **how)
        self.run_request(request)
        if request.stream is not None and request.prescale == request.postscale == 1.0:
            self._devices.learn(request, array, out)

    def submit_request(self, request: Request) -> Any:
        """Start a call of `calls.make_request`; the job has ``done`` and ``wait``.

        One on a device, in the communicator's own stream, has ``wait_on(stream)`` too.
        """
        executor = self.executor
        return executor.submit(request) if request.stream is None else self._devices.submit(request)

    def _submit(self, request: Request, out: Any) -> Handle:
        job = self.submit_request(request)
        while self._in_flight and not self._devices.is_capturing and self._in_flight[0][0].done():
            self._in_flight.popleft()
        self._in_flight.append((job, request))
        return Handle(self, job, out, request)

    def _reduce_out(self, array: Any, root: Rank, out: Any) -> Any:
        if root != self.rank:
            return None
        return self._like(array) if out is None else out

    def _request(self, collective: Collective, array: Any, out: Any, **how: Any) -> Request:
        """Return the checked call; `out` is None where this rank takes no result."""
        return make_request(collective, array, out, size=self.size, **how)

    def _like(self, array: Any, rows: int = 1, per: int = 1) -> Any:
        """Return a new array like `array` with its first axis times `rows`, divided by `per`."""
        given = view(array, "array", packed=False)
        shape = given.shape or (1,)
        if rows == per == 1:
            shape = given.shape
        elif shape[0] % per:
            raise InvalidBufferError(
                f"array has {shape[0]} rows, no multiple of the {per} ranks; give out="
            )
        else:
            shape = (shape[0] * rows // per, *shape[1:])
        if given.device is not None:
            return self._new_like(given, array, shape)
        if is_torch(array):
            return array.new_empty(shape)
        dtype = given.owner.dtype
        if given.count and self.executor.contains(given.pointer):
            return self.empty(shape, dtype)
        return np.empty(shape, dtype)


def _closed(*_: Any) -> bool:
    raise NotInitializedError("a collective")
