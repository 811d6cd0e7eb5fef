"""The devices of a communicator: what joins them, and what its calls on their memory take.

Nothing of it is there before the first call on memory of a device. That call brings the ranks'
devices together, over the group of the host, whose deadline and checks hold for it.
"""

from __future__ import annotations

import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blinkrun import buffers, env
from blinkrun.comm.base import ControlPlane
from blinkrun.comm.world import World
from blinkrun.errors import (
    BlinkrunError,
    CollectiveTimeoutError,
    InvalidBufferError,
    LaunchError,
    UsageError,
)
from blinkrun.executors import native
from blinkrun.executors.base import Executor, Request, not_fast
from blinkrun.repeats import Repeats
from blinkrun.types import Collective, DType, Op, Rank

if TYPE_CHECKING:
    from blinkrun.executors.device import DeviceExecutor, DeviceJob
    from blinkrun.executors.device_api import DeviceApi, DeviceInfo
    from blinkrun.planner.plan import Plan
    from blinkrun.topology.devices import Reach

# No other call of this collective has a scale, so none can be taken for that of a rank that joins.
# The core knows it too, for its message (csrc/group.cpp).
JOINING_SCALES = (1.0, 2.0)


class DeviceArray:
    """An array on a device, for whoever takes ``__cuda_array_interface__``.

    Attributes
    ----------
    shape : tuple of int
        Of the array.
    dtype : numpy.dtype
        Of its elements.
    device : int
        Number of the device in this process.
    pointer : int
        Address of the first element.
    owner : object
        What the memory is given back with.
    stream : int or None
        In whose order it is written; None if nothing has to be waited for.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what an array is
        self,
        owner: Any,
        pointer: int,
        device: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        stream: int | None = None,
    ) -> None:
        self.owner = owner
        self.pointer = pointer
        self.device = device
        self.shape = shape
        self.dtype = dtype
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "stream": 1 if self.stream == 0 else self.stream,  # 1: the legacy default stream
            "version": 3,
        }


class Devices:
    """One rank's device, joined with those of the other ranks by the first call on it.

    Attributes
    ----------
    executor : DeviceExecutor or None
        What runs calls on the device; None before the first.
    again : callable
        The short way of calls like one before, as `Executor.fast` is that of numpy arrays.
    is_capturing : bool
        Whether the last call of `submit` was captured in a graph: events may not be asked then.
    """

    def __init__(
        self,
        control: ControlPlane,
        world: World,
        host: Executor,
        names: Sequence[Rank] | None = None,
    ) -> None:
        self.executor: DeviceExecutor | None = None
        self.again: Callable[..., bool] = not_fast
        self.is_capturing = False
        self._names = names
        self._control = control
        self._world = world
        self._host = host
        self._repeats: Repeats | None = None
        self._apis: dict[int, DeviceApi] = {}
        self._lock = threading.Lock()

    def api(self, index: int) -> DeviceApi:
        """Return device `index`; not collective.

        Raises
        ------
        DeviceError
            If this process cannot use it; says what is missing.
        """
        found = self._apis.get(index)
        if found is None:
            from blinkrun.executors import cuda  # noqa: PLC0415 - needs cupy

            found = self._apis[index] = cuda.open_device(index, self._world.rank)
        return found

    def join(self, index: int) -> DeviceExecutor:
        """Return what runs calls on device `index`; the first time all ranks must call it.

        Raises
        ------
        InvalidBufferError
            If this rank has joined with another device.
        MismatchError, CollectiveTimeoutError
            If the other ranks call something else, or nothing.
        LaunchError, DeviceError
            On all ranks, if one of them cannot use its device.
        """
        executor = self.executor
        if executor is None:
            with self._lock:
                executor = self.executor
                if executor is None:
                    executor = self.executor = self._joined(index)
        if executor.index != index:
            raise InvalidBufferError(
                f"rank {self._world.rank}: the array is on device {index}, but this communicator's"
                f" first call was on device {executor.index}; a rank uses one device of a"
                " communicator"
            )
        return executor

    def run(self, request: Request) -> None:
        """Enqueue a call in its stream; returns at once."""
        executor = self.executor
        if executor is None or executor.index != request.device:
            executor = self.join(request.device)
        executor.run(request)

    def learn(self, request: Request, array: Any, out: Any) -> None:
        """Let `again` have a call that `run` has made on `array` and `out`, without scales."""
        if self._repeats is None and self.executor is not None:
            self._repeats = Repeats(self.executor)
            self.again = self._repeats.run
        if self._repeats is not None:
            self._repeats.learn(request, array, out)

    def submit(self, request: Request) -> DeviceJob:
        """Enqueue a call in the communicator's own stream, after what is in the request's now."""
        job = self.join(request.device).submit(request)
        self.is_capturing = job.is_captured
        return job

    def synchronize(self) -> None:
        """Wait for all calls of this rank on its device, and raise what went wrong.

        Streams are not asked: those of calls may be destroyed by now.
        """
        executor = self.executor
        if executor is not None:
            executor.finish()

    def explained(self, error: BlinkrunError) -> BlinkrunError:
        """Return what ended a call on memory of the host; a deadline may have an easy cause."""
        if self.executor is None or not isinstance(error, CollectiveTimeoutError):
            return error
        text = f"{error}; calls on memory of the host and calls on devices do not meet"
        return CollectiveTimeoutError(text, error.ranks, error.timeout_s)

    def close(self) -> None:
        """Leave; calls under way are finished first. Harmless if nothing was joined."""
        executor, self.executor = self.executor, None
        self._repeats, self.again = None, not_fast
        if executor is not None:
            executor.close()

    def _joined(self, index: int) -> DeviceExecutor:
        api, error = None, None
        try:
            api = self.api(index)
        except BlinkrunError as err:
            error = err
        self._agree(error)
        if api is None:
            raise error or LaunchError(f"there is no device {index}")
        from blinkrun.executors.device import DeviceExecutor  # noqa: PLC0415 - few need it

        return DeviceExecutor(
            self._control,
            self._world,
            self._host,
            api,
            make_plan=_plan,
            timeout_s=self._host.timeout_s,
            names=self._names,
        )

    def _agree(self, error: BlinkrunError | None) -> None:
        """Raise on all ranks unless all of them join, each with a device that it can use."""
        mine = np.array([error is not None], np.int64)
        everyone = np.zeros(self._world.size, np.int64)
        request = Request(
            Collective.ALLGATHER,
            DType.INT64,
            Op.SUM,
            0,
            mine.ctypes.data,
            everyone.ctypes.data,
            1,
            *JOINING_SCALES,
        )
        try:
            self._host.run(request)
        except native.Failure as failure:
            raise native.translate(failure, self._host.timeout_s) from None
        if not everyone.any():
            return
        texts = self._control.allgather(None if error is None else f"{error}")
        if error is not None:
            raise error
        rank = next(rank for rank, text in enumerate(texts) if text is not None)
        raise LaunchError(f"rank {rank} cannot use its device: {texts[rank]}")


def _plan(infos: Sequence[DeviceInfo], reach: Reach) -> Plan:
    """Return the plan for the ranks of a host; the executor asks the first rank."""
    from blinkrun.executors.device_plan import plan_devices  # noqa: PLC0415 - few need it
    from blinkrun.topology.devices import DeviceLinks  # noqa: PLC0415 - takes a third of a start

    links = env.choice(env.DEVICE_LINKS, tuple(DeviceLinks), DeviceLinks.AUTO)
    return plan_devices(infos, reach, links=links, sharing=env.gpus_per_rank().denominator)


class OnDevices(ABC):
    """The part of a `Communicator` that knows its devices."""

    _devices: Devices

    @property
    @abstractmethod
    def executor(self) -> Executor:
        """What the ranks share; raises NotInitializedError after shutdown."""

    @property
    def devices(self) -> DeviceExecutor | None:
        """What runs calls on this rank's device; None before the first call on one."""
        return self._devices.executor

    @property
    def device_index(self) -> int | None:
        """Number of this rank's device, as this process counts; None before the first call."""
        executor = self._devices.executor
        return None if executor is None else executor.index

    def device_api(self, index: int) -> DeviceApi:
        """Return device `index` of this process. Not collective.

        Raises
        ------
        DeviceError
            If it cannot be used here; says what is missing.
        """
        return self._devices.api(index)

    def device_executor(self, index: int) -> DeviceExecutor:
        """Return what runs calls on device `index`; collective until the devices have met.

        Calls on memory of a device do so by themselves. Waits for the other ranks at most the
        timeout; one that calls something else gives all of them a `MismatchError`.
        """
        self.executor  # noqa: B018 - raises after shutdown
        return self._devices.join(index)

    def synchronize(self) -> None:
        """Wait for this rank's calls on its device, and raise what went wrong. Not collective."""
        self._devices.synchronize()

    def check_devices(self) -> None:
        """Raise what has gone wrong on this rank's device; waits for nothing. Not collective."""
        executor = self._devices.executor
        if executor is not None:
            executor.check()

    def _device_bytes(self, num_bytes: int) -> Any:
        executor = self._devices.executor
        if executor is None:
            raise UsageError(
                "there is no memory of devices before the ranks have met there; make a call on an"
                " array of a device first, or device_executor(index) on all ranks"
            )
        return executor.empty_bytes(num_bytes)

    def _device_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
        memory = self._device_bytes(math.prod(shape) * dtype.itemsize)
        executor = self._devices.executor
        device = -1 if executor is None else executor.index
        return DeviceArray(memory, memory.pointer, device, shape, dtype)

    def _new_like(self, given: buffers.View, array: Any, shape: tuple[int, ...]) -> Any:
        """Return new memory like `array`, which `given` shows to be on a device."""
        made = buffers.new_like(array, shape)
        if made is not None:
            return made
        device = -1 if given.device is None else given.device
        dtype = buffers.numpy_dtype(given.dtype)
        num_bytes = math.prod(shape) * dtype.itemsize
        try:
            api = self._devices.api(device)
        except BlinkrunError:
            self._devices.join(
                device
            )  # tells the other ranks, which are about to wait for this one
            raise
        owner = _Allocation(api, num_bytes)
        return DeviceArray(owner, owner.pointer, device, shape, dtype, given.stream)


class _Allocation:
    """Memory of a device, given back when nobody holds it any more."""

    def __init__(self, api: DeviceApi, num_bytes: int) -> None:
        self.pointer = api.malloc(num_bytes) if num_bytes else 0
        if num_bytes:
            free: Callable[[int], None] = api.free  # the runtime waits for what still uses it
            weakref.finalize(self, free, self.pointer)
