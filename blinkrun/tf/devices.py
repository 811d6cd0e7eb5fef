"""Eager tensors on GPUs, reduced and broadcast where they are: through DLPack, without copies.

TensorFlow does not tell the stream in which it computes. So the host waits until its devices are
done before a call, and for the result after it; in between nothing goes through memory of the host.
Everything else on GPUs, and all of it inside a ``tf.function``, takes the way by the host: there
TensorFlow copies, since the kernel of the call is one of the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from blinkrun import buffers, dlpack
from blinkrun.adapter.where import calling_frame, place
from blinkrun.buffers import View
from blinkrun.engine import engine
from blinkrun.engine.handle import Part
from blinkrun.engine.request import ADASUM, CUDA, Kind, Member, Request
from blinkrun.tf.dtypes import DTYPES
from blinkrun.types import Op

if TYPE_CHECKING:
    from blinkrun.tf.call import Call

_KINDS = (Kind.ALLREDUCE, Kind.BROADCAST)
_sync = getattr(getattr(tf.test, "experimental", None), "sync_devices", None)


def is_on_gpu(tensor: tf.Tensor) -> bool:
    """Whether the memory of an eager tensor is on a GPU."""
    return ":GPU:" in tensor.backing_device


def takes(call: Call, tensors: Sequence[tf.Tensor]) -> bool:
    """Whether `run` can make `call` on these eager tensors."""
    if call.kind not in _KINDS or call.op == ADASUM or call.counts is not None or _sync is None:
        return False
    # Integers are divided and scaled by the engine, on the host.
    divides = call.op == Op.AVERAGE or call.scales != (1.0, 1.0)
    needs_floats = call.kind is Kind.ALLREDUCE and divides
    dtypes = [DTYPES.get(np.dtype(each.dtype.as_numpy_dtype)) for each in tensors]
    if any(dtype is None or (needs_floats and not dtype.is_float) for dtype in dtypes):
        return False
    return all(is_on_gpu(each) for each in tensors)


def run(call: Call, tensors: Sequence[tf.Tensor], number: int) -> list[tf.Tensor]:
    """Return the results of a settled call on eager tensors of one GPU, on that GPU.

    Parameters
    ----------
    call : Call
        That `takes` has accepted.
    tensors : sequence of tf.Tensor
        Of this rank.
    number : int
        Of the process set.
    """
    results = [_empty_like(tensor) for tensor in tensors]
    sources = [_view(tensor, call.called) for tensor in tensors]
    targets = [_view(result, call.called) for result in results]
    parts = [Part(*pair) for pair in zip(sources, targets, strict=True)]
    request = Request(
        call.name or "",
        call.kind,
        tuple(Member(view.dtype, view.shape) for view in sources),
        number,
        call.op,
        call.root,
        call.scales,
        (),
        CUDA,
        where=call.where or place(calling_frame()),
    )
    _sync()
    handle = engine.current().submit(request, parts, sync=True)
    handle.wait()
    passage = handle.passage
    if passage is not None:
        passage.lane.api.synchronize(passage.lane.stream)
        if passage.check is not None:
            passage.check()  # what went wrong on the device by now
    return results


def _empty_like(tensor: tf.Tensor) -> tf.Tensor:
    with tf.device(tensor.device):
        return tf.raw_ops.Empty(shape=tensor.shape, dtype=tensor.dtype, init=False)


def _view(tensor: tf.Tensor, what: str) -> View:
    capsule: Any = tf.experimental.dlpack.to_dlpack(tensor)
    found = dlpack.exported(capsule, what)
    # DLPack has TensorFlow's number of the GPU, which is another one where some are hidden.
    device = buffers.device_at(found.pointer)
    shape = tuple(tensor.shape)
    dtype = DTYPES[np.dtype(tensor.dtype.as_numpy_dtype)]
    index = found.device if device is None else device
    owner = (tensor, capsule)
    return View(found.pointer, tensor.shape.num_elements(), shape, dtype, True, owner, index, 0)
