"""Each rank its part of the data: `shard`, for data sets of tf.data and for arrays.

Nothing here imports TensorFlow: Keras on torch trains on arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import blinkrun
from blinkrun.adapter.process_sets import ProcessSet, global_process_set, number_of
from blinkrun.errors import UsageError

EVEN = ("drop", "repeat", None)


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of the data, and what happens where it cannot be divided evenly.

    Attributes
    ----------
    rank, size : int
        The part, and how many there are.
    even : "drop", "repeat" or None
        As `shard` takes it.
    batch_size : int or None
        Elements in a batch of one rank; None: an element is a batch.
    """

    rank: int
    size: int
    even: str | None
    batch_size: int | None = None

    def total(self, count: int) -> int:
        """Return how many of `count` elements, counted on from 0 again where they end, are dealt.

        >>> Part(0, 4, "drop").total(10), Part(0, 4, "repeat").total(10), Part(0, 4, None).total(10)
        (8, 12, 10)
        >>> Part(0, 4, "drop", batch_size=2).total(14)  # 4, 4, 3, 3: as many batches on each rank
        14
        """
        least, rest = divmod(count, self.size)
        batch = self.batch_size or 1
        batches = -(-least // batch)
        is_even = batches == -(-(least + (rest > 0)) // batch)
        if is_even or self.even is None:
            return count
        return (least + (self.even == "repeat")) * self.size


def shard(  # noqa: PLR0913
    data: Any,
    batch_size: int | None = None,
    *,
    batched: bool = False,
    shuffle: bool | int = False,
    seed: int = 0,
    even: str | None = "drop",
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return this rank's part of `data`: elements r, r + size, r + 2 size, ... for rank r.

    Every rank calls it with the same data in the same order, and all together get all of it; ranks
    train on as many batches each, so that none waits for one that has no more.

    Parameters
    ----------
    data : tf.data.Dataset, array, or tuple, list or dict of arrays
        Arrays (of numpy, TensorFlow or torch) are divided along their first dimension, which all
        of them have in common; ``x, y = shard((x, y))`` is for ``model.fit(x, y)``. Without
        `shuffle` parts of numpy arrays are views. A data set is best divided before what costs
        time: every rank reads all elements, and leaves out those of others.
    batch_size : int, optional
        Elements in a batch of one rank. A data set is also cut into such batches; for arrays it is
        that of ``model.fit``. Where it is known, elements are left out or repeated only if ranks
        would have different numbers of batches: the last ones may differ in size. Batch k of all
        ranks together is batch k of one process with ``batch_size * size``.
    batched : bool, default False
        The elements of a data set are joined batches: rank r gets rows r, r + size, ... of each.
    shuffle : bool or int, default False
        Shuffle before the division, alike on all ranks; a number is that of elements in the
        buffer of a data set, True is all of them. A data set is shuffled anew in every epoch,
        arrays are shuffled once. The shuffling of one's own before `shard` must be alike on all
        ranks, or ranks train on the same elements.
    seed : int, default 0
        Of the shuffling; the same on all ranks. Seeds of TensorFlow and Keras play no part.
    even : "drop", "repeat" or None, default "drop"
        Where there is not the same number of batches for each rank: leave out the last elements,
        fewer than there are ranks; give some elements to two ranks; or let some ranks have fewer,
        which must call `join` then.
    process_set : ProcessSet
        The ranks that share the data; this one must be among them.

    Returns
    -------
    same as `data`
        A data set of a known number of elements stays one, except with `batched`.

    Raises
    ------
    NotInitializedError
        Before `init`.
    UsageError
        If `data` is none of the above, arrays differ in length, or a data set that is shuffled
        without a seed, or gives elements in no fixed order, would be another one on each rank.
    MismatchError
        If a data set is shuffled before with seeds that differ between ranks; on every rank.

    Examples
    --------
    >>> import blinkrun.tf as blink
    >>> blink.init()
    >>> x, y = blink.shard((np.arange(4), np.arange(4) ** 2))  # one rank has all
    >>> y
    array([0, 1, 4, 9])
    >>> blink.shutdown()
    """
    if even not in EVEN:
        raise UsageError(f"shard: even is {even!r}; choose 'drop', 'repeat' or None")
    if batch_size is not None and (isinstance(batch_size, bool) or batch_size < 1):
        raise UsageError(f"shard: batch_size is {batch_size!r}; need a number from 1")
    number_of(process_set)  # says so if it has none
    blinkrun.world()  # says so before init
    part = Part(process_set.rank(), process_set.size(), even, batch_size)
    tf = sys.modules.get("tensorflow")
    if tf is not None and isinstance(data, tf.data.Dataset):
        from blinkrun.tf import dataset  # noqa: PLC0415 - it imports TensorFlow

        return dataset.shard(
            data, part, batched=batched, shuffle=shuffle, seed=seed, process_set=process_set
        )
    if batched:
        raise UsageError("shard: batched is for data sets of batches; arrays have none")
    count = _count(data)
    rows = _rows(count, part, seed if shuffle else None)
    return _map(lambda array: _taken(array, rows), data)


def _rows(count: int, part: Part, seed: int | None) -> slice | np.ndarray[Any, Any]:
    """Return what to index arrays of `count` rows with."""
    total = part.total(count)
    if seed is None and total <= count:
        return slice(part.rank, total, part.size)
    order = np.arange(count) if seed is None else np.random.default_rng(seed).permutation(count)
    places = np.arange(part.rank, total, part.size)
    return order[places % count] if count else order


def _taken(array: Any, rows: slice | np.ndarray[Any, Any]) -> Any:
    tf = sys.modules.get("tensorflow")
    if tf is not None and isinstance(array, tf.Tensor) and not isinstance(rows, slice):
        return tf.gather(array, rows)
    return array[rows]


def _map(change: Callable[[Any], Any], data: Any) -> Any:
    """Return nested `data` with its arrays changed."""
    if isinstance(data, dict):
        return {key: _map(change, item) for key, item in data.items()}
    if isinstance(data, tuple | list):
        return type(data)(_map(change, item) for item in data)
    return data if data is None else change(data)


def _count(data: Any) -> int:
    """Return the rows of nested arrays, or raise if they differ or there are none."""
    counts: list[int] = []

    def look(array: Any) -> None:
        shape = getattr(array, "shape", None)
        if shape is None or not hasattr(array, "__getitem__") or hasattr(array, "iloc"):
            raise UsageError(
                f"shard takes a tf.data.Dataset, arrays, or tuples and dicts of arrays, got "
                f"{type(array).__name__}"
            )
        if len(shape) == 0:
            raise UsageError("shard: an array without dimensions has no rows to divide")
        counts.append(int(shape[0]))

    _map(look, data)
    if not counts:
        raise UsageError("shard: there is no array to divide")
    if len(set(counts)) > 1:
        raise UsageError(f"shard: arrays have different numbers of rows: {counts}")
    return counts[0]
