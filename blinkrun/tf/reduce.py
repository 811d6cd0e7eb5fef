"""Gradients of all ranks as one, eagerly and inside a ``tf.function``.

Dense gradients travel in buckets (`blinkrun.adapter.gradients`), all in one call of the engine, or
a bucket at a time as backward makes them. Sparse ones travel as indices and values of all ranks.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from blinkrun import env, log
from blinkrun.adapter.gradients import Gradient, Gradients, Started
from blinkrun.engine import engine
from blinkrun.engine.request import ADASUM, Kind
from blinkrun.errors import InvalidBufferError, NotSupportedError
from blinkrun.executors import native
from blinkrun.tf import graph, xla
from blinkrun.tf.arrays import Array, array_of, tensor_of
from blinkrun.tf.call import Call, submit_arrays
from blinkrun.tf.dtypes import DTYPES
from blinkrun.tf.errors import translated
from blinkrun.tf.how import How, identity, overlap, positions
from blinkrun.tf.ops_names import in_graph
from blinkrun.tf.variable_names import comparable
from blinkrun.types import Op

Grad = tf.Tensor | tf.IndexedSlices | None

_REALS = {np.dtype(np.complex64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(float)}
_KEPT_PLANS = 64


@tf.autograph.experimental.do_not_convert
def reduced(
    gradients: Sequence[Grad],
    names: Sequence[str],
    how: How,
    *,
    variables: Sequence[Any] | None = None,
) -> list[Grad]:
    """Return gradients reduced over the ranks; every rank of the process set calls it.

    Eagerly it waits for the others; in a graph the ops do that at every run. On one rank nothing
    is added to the graph.

    Parameters
    ----------
    gradients : sequence of tf.Tensor, tf.IndexedSlices or None
        None stays None, and is None on all ranks.
    names : sequence of str
        Of the variables, for messages; compared between ranks but for Keras' numbering of layers.
    how : How
        The same on all ranks.
    variables : sequence of variables, optional
        Whose gradients they are; for `How.groups` of variables.

    Raises
    ------
    MismatchError
        If ranks differ in variables, shapes or arguments; names ranks and the first difference.
    InvalidBufferError
        If a gradient is of a dtype that is not reduced.
    NotInitializedError
        Before ``init()``.
    """
    with translated():
        gradients = list(gradients)
        if how.sparse_as_dense:
            gradients = [as_dense(each) for each in gradients]
        if how.is_alone() or not gradients:
            return gradients
        xla.refuse(f"the reduction of gradients ('{how.owner}')")
        return _Reduction(gradients, tuple(names), how, variables).run(gradients)


def reduced_but_local(
    gradients: Sequence[Grad], variables: Sequence[Any], names: Sequence[str], how: How, local: Any
) -> list[Grad]:
    """Return `reduced` gradients, but for those of variables that belong to this rank alone.

    Parameters
    ----------
    local : container of int
        ``identity`` of the variables that are this rank's own; their gradients are divided by the
        number of ranks if `how` says so.
    """
    if not local:
        return reduced(gradients, names, how, variables=variables)
    is_local = [identity(variable) in local for variable in variables]
    shared = [number for number, its_own in enumerate(is_local) if not its_own]
    results = list(gradients)
    changed = reduced(
        [gradients[n] for n in shared],
        [names[n] for n in shared],
        how,
        variables=[variables[n] for n in shared],
    )
    for number, result in zip(shared, changed, strict=True):
        results[number] = result
    if how.scale_local_gradients:
        size = how.process_set.size() or 1
        results = [
            divided(result, size) if its_own else result
            for result, its_own in zip(results, is_local, strict=True)
        ]
    return results


def as_dense(gradient: Grad) -> Grad:
    """Return a gradient as a tensor; None stays None."""
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def divided(gradient: Grad, divisor: int) -> Grad:
    """Return a gradient divided by a number; None stays None."""
    if gradient is None or divisor == 1:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(divisor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(divisor, gradient.dtype)


class _Reduction:
    """One call of `reduced`: what is known of its gradients, and the ops or arrays that do it."""

    def __init__(
        self,
        gradients: Sequence[Grad],
        names: tuple[str, ...],
        how: How,
        variables: Sequence[Any] | None,
    ) -> None:
        self._how = how
        for name, each in zip(names, gradients, strict=True):
            if isinstance(each, tf.RaggedTensor | tf.SparseTensor):
                raise InvalidBufferError(
                    f"gradient '{name}' is a {type(each).__name__}, which is not reduced; tensors "
                    "and IndexedSlices are"
                )
        self._names = comparable(names)
        self._dense = [n for n, g in enumerate(gradients) if _is_dense(g)]
        self._sparse = [n for n, g in enumerate(gradients) if isinstance(g, tf.IndexedSlices)]
        if self._sparse and how.op == ADASUM:
            raise NotSupportedError(
                f"gradient '{names[self._sparse[0]]}' is sparse, which Adasum does not combine; "
                "give sparse_as_dense=True"
            )
        self._last: tuple[list[tuple[int, ...]], Gradients] | None = None
        self._groups = positions(how.groups, self._dense, variables)
        self._owner = how.owner
        if not tf.executing_eagerly():
            self._owner = in_graph(how.owner, "", is_whole=True)

    def run(self, gradients: list[Grad]) -> list[Grad]:
        """Return the reduced gradients."""
        compressor = self._how.compression
        packed = [compressor.compress(tf.convert_to_tensor(gradients[n])) for n in self._dense]
        tensors = [tensor for tensor, _ in packed]
        self._describe(gradients, tensors)
        slices = [gradients[n] for n in self._sparse]
        inputs = [*tensors, *[part for each in slices for part in (each.indices, each.values)]]
        results = self._eagerly(inputs) if tf.executing_eagerly() else self._in_graph(inputs)
        reduced_gradients: list[Grad] = [None] * len(gradients)
        num_dense = len(self._dense)
        for number, result, (_, context) in zip(
            self._dense, results[:num_dense], packed, strict=True
        ):
            reduced_gradients[number] = compressor.decompress(result, context)
        pairs = zip(results[num_dense::2], results[num_dense + 1 :: 2], strict=True)
        for number, each, (indices, values) in zip(self._sparse, slices, pairs, strict=True):
            gathered = tf.IndexedSlices(values, indices, each.dense_shape)
            is_average = self._how.op == Op.AVERAGE
            size = self._how.process_set.size() if is_average else 1
            reduced_gradients[number] = divided(gathered, size)
        return reduced_gradients

    def _describe(self, gradients: list[Grad], tensors: list[tf.Tensor]) -> None:
        """Note what all ranks must have in common of what is known before arrays are."""
        kinds = [_describe(each) for each in gradients]
        self._kinds = list(zip(self._names, kinds, strict=True))
        for number, tensor in zip(self._dense, tensors, strict=True):
            if np.dtype(tensor.dtype.as_numpy_dtype) not in (*DTYPES, *_REALS):
                raise InvalidBufferError(
                    f"gradient '{self._names[number]}' is {tensor.dtype.name}, which is not "
                    "reduced; floats, complex numbers and common integers are"
                )

    def _eagerly(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        arrays = self._start([array_of(each) for each in inputs]).wait()
        return [tensor_of(a, t.dtype) for a, t in zip(arrays, inputs, strict=True)]

    def _in_graph(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        if not inputs:
            return []
        num_dense = len(self._dense)
        specs = [tf.TensorSpec(each.shape, each.dtype) for each in inputs]
        specs[num_dense:] = [
            tf.TensorSpec([None, *spec.shape[1:]] if spec.shape.rank else None, spec.dtype)
            for spec in specs[num_dense:]
        ]
        plan = self._known_plan(inputs)
        if plan is not None and len(plan.buckets) > 1 and overlap().on:
            return self._bucket_by_bucket(plan, inputs, specs)
        return graph.call(self._start, inputs, specs, "gradients")

    def _known_plan(self, tensors: Sequence[tf.Tensor]) -> Gradients | None:
        """Return the plan of tensors of a graph, None if their shapes are not known yet."""
        num_dense = len(self._dense)
        shapes = [each.shape for each in tensors[:num_dense]]
        shapes += [each.shape[1:] for each in tensors[num_dense + 1 :: 2]]
        if not all(shape.is_fully_defined() for shape in shapes):
            return None
        dense = [np.empty(t.shape, t.dtype.as_numpy_dtype) for t in tensors[:num_dense]]
        return self._plan([_real(each) for each in dense], [tuple(s) for s in shapes[num_dense:]])

    def _bucket_by_bucket(
        self, plan: Gradients, inputs: list[tf.Tensor], specs: list[tf.TensorSpec]
    ) -> list[tf.Tensor]:
        """Have each bucket begin when its gradients are there; the last op waits for all.

        Not before all have begun: so ranks that differ always tell each other.
        """
        num_dense = len(self._dense)
        under_way: dict[int, Started] = {}  # what a run that has failed leaves is replaced

        def begin(bucket: int, arrays: Sequence[Array]) -> None:
            native.reclaim()
            under_way[bucket] = plan.begin(bucket, [_real(array) for array in arrays])

        def begin_early(bucket: int) -> graph.Start:
            def begun(arrays: Sequence[Array]) -> _Begun:
                begin(bucket, arrays)
                return _Begun()

            return begun

        last = len(plan.buckets) - 1
        flag = [tf.TensorSpec([], tf.bool)]
        begun = [
            graph.call(begin_early(bucket), [inputs[g] for g in members], flag, "gradients_early")[
                0
            ]
            for bucket, members in enumerate(plan.buckets[:-1])
        ]
        chosen = [inputs[g] for g in plan.buckets[last]]
        dtypes = [np.dtype(each.dtype.as_numpy_dtype) for each in inputs[:num_dense]]

        def start(arrays: Sequence[Array]) -> _Both:
            begin(last, arrays[: len(chosen)])
            dense = plan.together([under_way.pop(bucket) for bucket in range(last + 1)])
            gathered = self._start_sparse(arrays[len(chosen) : len(arrays) - len(begun)])
            return _Both(dense, gathered, dtypes)

        return graph.call(start, [*chosen, *inputs[num_dense:], *begun], specs, "gradients")

    def _start(self, arrays: Sequence[Array]) -> _Both:
        """Begin the reduction of arrays; never waits. Somebody will, at once."""
        native.reclaim()  # the results of the last step, which TensorFlow no longer uses
        num_dense = len(self._dense)
        dense = [_real(array) for array in arrays[:num_dense]]
        shapes = [array.shape for array in dense]
        shapes += [values.shape[1:] for values in arrays[num_dense + 1 :: 2]]
        if self._last is None or self._last[0] != shapes:
            self._last = (shapes, self._plan(dense, shapes[num_dense:]))
        plan = self._last[1]
        started = plan.begin_all(dense, sync=True)
        gathered = self._start_sparse(arrays[num_dense:])
        return _Both(started, gathered, [array.dtype for array in arrays[:num_dense]])

    def _start_sparse(self, arrays: Sequence[Array]) -> list[Any]:
        """Begin to gather indices and values, two arrays for each sparse gradient."""
        return [
            submit_arrays(self._gather(number), arrays[2 * place : 2 * place + 2], sync=True)
            for place, number in enumerate(self._sparse)
        ]

    def _gather(self, number: int) -> Call:
        name = f"{self._owner}.sparse.{number}"
        return Call(Kind.ALLGATHER, name, self._how.process_set, where="gradients", repeats=True)

    def _plan(self, arrays: Sequence[Array], rows: Sequence[tuple[int, ...]]) -> Gradients:
        """Return the plan for dense arrays and for sparse ones with `rows` of these shapes.

        It is the same object for all that are alike.
        """
        how = self._how
        gradients = tuple(
            Gradient(self._names[number], DTYPES[array.dtype], array.shape)
            for number, array in zip(self._dense, arrays, strict=True)
        )
        facts = list(self._kinds)
        for number, array in zip(self._dense, arrays, strict=True):
            name, kind = facts[number]
            facts[number] = name, f"{kind} {array.shape}"
        for number, shape in zip(self._sparse, rows, strict=True):
            name, kind = facts[number]
            facts[number] = name, f"{kind} rows {shape}"
        key = (self._owner, gradients, tuple(facts), self._groups, how.key)
        return _plans.find(key, lambda: self._make(gradients, facts))

    def _make(self, gradients: Sequence[Gradient], facts: Sequence[tuple[str, str]]) -> Gradients:
        how = self._how
        compression = getattr(how.compression, "__name__", type(how.compression).__name__)
        plan = Gradients(
            gradients,
            owner=self._owner,
            process_set=how.process_set,
            op=how.op,
            scales=how.scales,
            bucket_bytes=how.bucket_bytes,
            groups=self._groups,
            facts=facts,
            arguments=[
                ("compression", compression),
                ("sparse_as_dense", str(bool(how.sparse_as_dense))),
            ],
            requests=[self._gather(number).name or "" for number in self._sparse],
        )
        if engine.current().world.rank == 0 and env.is_on(env.VERBOSE):
            _say(plan, len(self._sparse))
        return plan


def _say(plan: Gradients, num_sparse: int) -> None:
    """Say how gradients travel."""
    choice = overlap()
    num_bytes = sum(math.prod(each.shape) * each.dtype.itemsize for each in plan.gradients)
    plural = "" if len(plan.buckets) == 1 else "s"
    sparse = f" and {num_sparse} sparse ones" if num_sparse else ""
    log.say(
        f"gradients of '{plan.owner}': {num_bytes / 1e6:.1f} MB in {len(plan.buckets)} "
        f"bucket{plural}{sparse}, overlap {'on' if choice.on else 'off'} ({choice.reason})",
        rank=0,
    )


class _Begun:
    """The result of having begun something: there at once."""

    def add_done_callback(self, call: Callable[[], Any]) -> None:
        """Call `call` now."""
        call()

    def wait(self) -> list[Array]:
        """Return that it has begun."""
        return [np.asarray(True)]


class _Both:
    """Dense and sparse gradients under way."""

    def __init__(self, dense: Started, sparse: Sequence[Any], dtypes: Sequence[Any]) -> None:
        dense.further += [each.handle for each in sparse]
        self.add_done_callback = dense.add_done_callback
        self.abandon = dense.abandon
        self._dense = dense
        self._sparse = sparse
        self._dtypes = dtypes

    def wait(self) -> list[Array]:
        """Return the dense results, then indices and values of the sparse ones."""
        results = [
            array if array.dtype == dtype else array.view(dtype).reshape(array.shape[:-1])
            for array, dtype in zip(self._dense.wait(), self._dtypes, strict=True)
        ]
        for each in self._sparse:
            results += each.wait()
        return results


class _Plans:
    """The plans that were used last; those that fall out give back their memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Any, Gradients] = OrderedDict()

    def find(self, key: Any, make: Callable[[], Gradients]) -> Gradients:
        """Return the plan of `key`, made now if it is new."""
        with self._lock:
            plan = self._kept.get(key)
            if plan is None:
                plan = self._kept[key] = make()
                if len(self._kept) > _KEPT_PLANS:
                    self._kept.popitem(last=False)
            else:
                self._kept.move_to_end(key)
            return plan


_plans = _Plans()


def _is_dense(gradient: Grad) -> bool:
    return gradient is not None and not isinstance(gradient, tf.IndexedSlices)


def _describe(gradient: Grad) -> str:
    """Return what is known of a gradient without its shape, which may not be known in a graph."""
    if gradient is None:
        return "None"
    if isinstance(gradient, tf.IndexedSlices):
        return f"IndexedSlices of {gradient.values.dtype.name}"
    return str(gradient.dtype.name)


def _real(array: Array) -> Array:
    """Return complex numbers as pairs of reals, others as they are."""
    real = _REALS.get(array.dtype)
    if real is None:
        return array
    return np.ascontiguousarray(array).reshape(-1).view(real).reshape(*array.shape, 2)
