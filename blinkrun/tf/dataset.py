"""`shard` for data sets of tf.data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from blinkrun.adapter import objects
from blinkrun.adapter.process_sets import ProcessSet
from blinkrun.errors import MismatchError, UsageError
from blinkrun.tf.data import Part

Dataset = tf.data.Dataset
_SECOND_SEED = 20  # any; the two seeds of an op are not to be 0 both, which means "at random"


def shard(  # noqa: PLR0913
    dataset: Dataset,
    part: Part,
    *,
    batched: bool,
    shuffle: bool | int,
    seed: int,
    process_set: ProcessSet,
) -> Dataset:
    """Return a part of `dataset`; arguments are those of `blinkrun.tf.shard`, checked."""
    if part.size > 1:
        _check_order(dataset, process_set)
    if batched and part.batch_size is not None:
        raise UsageError("shard: batched data sets have their batch size; give one of the two")
    if shuffle:
        dataset = _shuffled(dataset, shuffle, seed)
    if batched:
        return dataset if part.size == 1 else _divided(dataset, part)
    count = int(dataset.cardinality())
    if part.size == 1 or count == tf.data.INFINITE_CARDINALITY:
        return _cut(dataset.shard(part.size, part.rank), part)
    if count != tf.data.UNKNOWN_CARDINALITY:
        return _cut(_dealt(dataset, count, part), part)
    if part.batch_size is not None and _can_batch(dataset.element_spec):
        return _divided(dataset.batch(part.batch_size * part.size), part)
    return _cut(_dealt_unknown(dataset, part), part)


def _cut(dataset: Dataset, part: Part) -> Dataset:
    return dataset if part.batch_size is None else dataset.batch(part.batch_size)


def _dealt(dataset: Dataset, count: int, part: Part) -> Dataset:
    """Return the part of a data set of `count` elements."""
    total = part.total(count)
    if total > count:
        again = dataset.take(total - count).repeat()  # of fewer elements than ranks, several times
        dataset = dataset.concatenate(again.take(total - count))
    elif total < count:
        dataset = dataset.take(total)
    return dataset.shard(part.size, part.rank)


def _dealt_unknown(dataset: Dataset, part: Part) -> Dataset:
    """Return the part of a data set of which nobody knows how many elements it has."""
    if part.even is None:
        return dataset.shard(part.size, part.rank)

    def mine(*window: Any) -> Dataset:
        turn = Dataset.zip(window if len(window) > 1 else window[0])
        if part.even == "repeat":
            turn = turn.repeat()
        return turn.skip(part.rank).take(1)

    return dataset.window(part.size, drop_remainder=part.even == "drop").flat_map(mine)


def _divided(dataset: Dataset, part: Part) -> Dataset:
    """Return the rows of this rank of each batch; batches with too few rows are not for all."""
    leaves = tf.nest.flatten(dataset.element_spec)
    if not leaves or not all(map(_has_rows, leaves)):
        raise UsageError(
            "shard: batched takes data sets of tensors and ragged tensors with rows, the elements "
            f"are {dataset.element_spec}; divide it before it is batched"
        )
    smallest = min((leaf.shape[0] or 0 for leaf in leaves), default=0)

    def count(batch: tuple[Any, ...]) -> tf.Tensor:
        first = tf.nest.flatten(batch)[0]
        return first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0]

    def mine(*batch: Any) -> Any:
        begin = part.rank
        if part.even == "repeat" and smallest < part.size:
            begin %= tf.maximum(tf.cast(count(batch), tf.int32), 1)
        rows = tf.nest.map_structure(lambda leaf: leaf[begin :: part.size], batch)
        return rows if len(rows) > 1 else rows[0]

    def is_enough(*batch: Any) -> tf.Tensor:
        needed = {"drop": part.size, "repeat": 1, None: part.rank + 1}[part.even]
        return count(batch) >= needed

    if smallest < part.size:
        dataset = dataset.filter(_as_it_is(is_enough))
    return dataset.map(_as_it_is(mine), num_parallel_calls=tf.data.AUTOTUNE)


_as_it_is = tf.autograph.experimental.do_not_convert


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, tf.TensorSpec | tf.RaggedTensorSpec) and leaf.shape.rank != 0


def _can_batch(spec: Any) -> bool:
    """Whether elements are tensors of one shape."""
    leaves = tf.nest.flatten(spec)
    return bool(leaves) and all(
        isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined() for leaf in leaves
    )


# ---- order -------------------------------------------------------------------------------------


def _shuffled(dataset: Dataset, shuffle: bool | int, seed: int) -> Dataset:
    """Return `dataset` shuffled by `seed` alone, in another order in every epoch.

    ``Dataset.shuffle`` mixes in the seed of the program, which differs where ranks are to begin
    with different weights or dropout.
    """
    buffer = int(shuffle)
    if shuffle is True:
        buffer = int(dataset.cardinality())
        if buffer < 0:
            raise UsageError(
                "shard: the data set does not know how many elements it has; give shuffle= the "
                "number of elements in the buffer"
            )
    if buffer < 1:
        return dataset
    structure = dataset.element_spec
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=tf.constant(buffer, tf.int64),
        seed=tf.constant(seed, tf.int64),
        seed2=tf.constant(_SECOND_SEED, tf.int64),
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        reshuffle_each_iteration=True,
        **dataset._flat_structure,
    )
    shuffled = tf.data.experimental.from_variant(variant, structure)
    shuffled._blink_input = dataset  # keeps its functions alive
    return shuffled


def _check_order(dataset: Dataset, process_set: ProcessSet) -> None:
    """Raise if ranks would see the elements in different orders, as far as can be known."""
    if dataset.options().deterministic is False:
        raise UsageError(
            "shard: the data set gives elements in no fixed order (options().deterministic is "
            "False); set it to True, or divide it before"
        )
    seeds = list(_seeds(dataset))
    if (0, 0) in seeds:
        raise UsageError(
            "shard: the data set is shuffled without a seed, so in another order on each rank; "
            "shuffle by shard(..., shuffle=...), or give a seed that is the same on all ranks"
        )
    if not seeds:
        return
    everyone = objects.allgather_object(seeds, process_set=process_set)
    for rank, theirs in zip(process_set.ranks, everyone, strict=True):
        if theirs != everyone[0]:
            raise MismatchError(
                f"shard: the data set is shuffled with seeds {theirs} on rank {rank}, "
                f"{everyone[0]} on rank {process_set.ranks[0]} (an op's and the program's); "
                "shuffle by shard(..., shuffle=...), which takes a seed of its own"
            )


def _seeds(dataset: Dataset) -> Iterator[tuple[int, int]]:
    """Give the seeds of every shuffle that a data set goes through."""
    first, second = getattr(dataset, "_seed", None), getattr(dataset, "_seed2", None)
    if first is not None and second is not None and "Shuffle" in type(dataset).__name__:
        yield int(first), int(second)
    for each in dataset._inputs():
        yield from _seeds(each)
