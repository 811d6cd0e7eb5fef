"""Calls on devices like one before: what was checked then is not checked again.

What a call comes to depends on all that `outline` tells of its arrays, and on their addresses only
in what is looked at here. So a call on the same memory, or on other memory of the same shape, type
and stream, goes from the arrays to the launch by one look-up.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blinkrun import buffers
from blinkrun.executors.base import Request
from blinkrun.types import Collective, Rank

if TYPE_CHECKING:
    from blinkrun.executors.device import DeviceExecutor
    from blinkrun.executors.device_call import Prepared

MOST_KNOWN = 4096  # calls
_MANY_IN = (Collective.REDUCESCATTER, Collective.ALLTOALL)
_MANY_OUT = (Collective.ALLGATHER, Collective.ALLTOALL)

Outline = tuple[int, tuple[Any, ...]]
_NOTHING: Outline = (0, ())  # of no array


def outline(item: Any) -> Outline | None:
    """Return the address of `item`, and all else that a call on a device goes by.

    Whatever has the same outline but for the address has the same `buffers.view` but for that and
    the owner. None for memory of the host, and where only the view can tell.
    """
    if buffers.is_torch(item):
        return _of_tensor(item)
    interface = getattr(item, "__cuda_array_interface__", None)
    return None if interface is None else _of_array(item, interface)


def _of_tensor(tensor: Any) -> Outline | None:
    device = buffers.device_of(tensor)
    if device is None or not tensor.is_contiguous():
        return None
    if tensor.layout is not sys.modules["torch"].strided:
        return None
    return tensor.data_ptr(), (tensor.dtype, tensor.numel(), device, buffers.stream_of(tensor))


def _of_array(item: Any, interface: dict[str, Any]) -> Outline | None:
    look_up = interface.get
    device, stream = getattr(item, "device", None), look_up("stream")
    if not isinstance(device, int):
        if not buffers.is_cupy(item):
            return None  # the address tells the device
        device, stream = int(item.device.id), buffers.stream_of(item)
    typestr, shape = interface["typestr"], interface["shape"]
    has_more = look_up("strides") is not None or look_up("mask") is not None
    if has_more or typestr[1] == "V" or not isinstance(shape, tuple):
        return None
    pointer, is_read_only = interface["data"]
    return pointer, (typestr, shape, is_read_only, device, stream)


@dataclass(frozen=True, slots=True)
class Known:
    """A call that was made; sizes are those of its whole buffers, in bytes."""

    call: Prepared
    stream: int
    itemsize: int
    given_bytes: int
    taken_bytes: int


class Repeats:
    """The calls on a device that one communicator has made, but for those with scales."""

    def __init__(self, executor: DeviceExecutor) -> None:
        self._executor = executor
        self._known: dict[tuple[Any, ...], Known] = {}

    def run(self, collective: int, array: Any, out: Any, op: int, root: Rank) -> bool:
        """Enqueue a call if there was one like it; False: it needs the long way.

        Parameters
        ----------
        collective : int
            Number of a `Collective`.
        array, out : array
            `out` is None where this rank takes no result.
        op : int
            Of the collective, if it has one.
        root : Rank
            Likewise.
        """
        found = outline(array)
        if found is None or type(root) is not int:
            return False
        given, kind = found
        if out is array:
            taken = given
            known = self._known.get((collective, op, root, kind))
        else:
            other = _NOTHING if out is None else outline(out)
            if other is None:
                return False
            taken, kind_out = other
            known = self._known.get((collective, op, root, kind, kind_out))
        if known is None or given % known.itemsize or taken % known.itemsize:
            return False
        if out is not array and _overlap(known, given, taken):
            return False
        self._executor.again(known.call, given, taken, (array, out), known.stream)
        return True

    def learn(self, request: Request, array: Any, out: Any) -> None:
        """Know a call that has been made, as `run` will be asked for it."""
        given = outline(array)
        taken = given if out is array else _NOTHING if out is None else outline(out)
        if given is None or taken is None:
            return
        if (given[0], taken[0]) != (request.input, request.output):
            return  # a copy was made
        itemsize, collective = request.dtype.itemsize, request.collective
        num_bytes, size = request.count * itemsize, self._executor.size
        known = Known(
            self._executor.prepared(request),
            request.stream or 0,
            itemsize,
            num_bytes * (size if collective in _MANY_IN else 1),
            num_bytes * (size if collective in _MANY_OUT else 1),
        )
        kinds = (given[1],) if out is array else (given[1], taken[1])
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[int(collective), int(request.op), request.root, *kinds] = known


def _overlap(known: Known, given: int, taken: int) -> bool:
    return given < taken + known.taken_bytes and taken < given + known.given_bytes
