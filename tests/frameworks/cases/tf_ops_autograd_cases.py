"""Gradients of collectives on TensorFlow tensors, against the formula of each.

Each case returns what went wrong: nothing, if it works. ``weights(rank)`` are what the results of a
rank are multiplied with before they are summed: the gradients of the results.
"""

import numpy as np
import tensorflow as tf

import blinkrun.tf as blink

CASES = (
    "gradient_of_allreduce",
    "gradient_of_selections",
    "gradient_of_products",
    "gradient_of_grouped_allreduce",
    "gradient_of_allgather",
    "gradient_of_grouped_allgather",
    "gradient_of_broadcast",
    "gradient_of_alltoall",
    "gradient_of_reducescatter",
    "gradient_of_compressed",
    "gradient_of_indexed_slices",
    "gradient_over_process_sets",
    "gradient_of_variables_and_none",
    "second_derivatives",
    "gradients_in_another_order",
    "gradient_of_another_dtype",
)


def weights(rank, shape=(2, 3)):
    return tf.reshape(tf.range(1.0, np.prod(shape, dtype=int) + 1), shape) * (rank + 1.0)


def given(rank, shape=(2, 3)):
    return tf.reshape(tf.range(np.prod(shape, dtype=int), dtype=tf.float32), shape) + rank


def ranks():
    return range(blink.size())


def average(tensors):
    return tf.add_n(tensors) / len(tensors)


def both_ways(forward, *inputs):
    """The gradients of the weighed sum of what `forward` gives, eagerly, and twice in a graph."""

    def gradients(*tensors, forward=forward):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            results = forward(*tensors)
            results = results if isinstance(results, list | tuple) else [results]
            loss = tf.add_n([tf.reduce_sum(weighed(result)) for result in results])
        return tape.gradient(loss, tensors)

    traced = tf.function(gradients, autograph=False)
    outer = tf.function(forward, autograph=False)
    return {
        "eager": gradients(*inputs),
        "graph": traced(*inputs),
        "graph again": traced(*inputs),
        "of a function": gradients(*inputs, forward=outer),
    }


def weighed(result):
    """The result times what `weights` gives, also where its shape is not known yet."""
    numbers = tf.cast(tf.range(1, tf.size(result) + 1), result.dtype)
    return result * tf.reshape(numbers, tf.shape(result)) * (blink.rank() + 1.0)


def wrong(ways, *wanted):
    found = []
    for way, got in ways.items():
        for index, gradient in enumerate(got):
            want = np.asarray(wanted[index])
            if gradient is None or gradient.shape != want.shape:
                found.append(f"{way}, input {index}: {gradient}, want {want.tolist()}")
            elif not np.allclose(gradient.numpy(), want, rtol=1e-5):
                found.append(f"{way}, input {index}: {gradient.numpy()}, want {want.tolist()}")
    return found


def gradient_of_allreduce():
    total = tf.add_n([weights(r) for r in ranks()])
    mine = given(blink.rank())
    found = wrong(both_ways(blink.allreduce, mine), total / blink.size())
    found += wrong(both_ways(lambda x: blink.allreduce(x, op=blink.Sum), mine), total)
    scaled = both_ways(
        lambda x: blink.allreduce(x, op=blink.Sum, prescale_factor=2.0, postscale_factor=0.25),
        mine,
    )
    found += wrong(scaled, total * 0.5)
    scalar = both_ways(lambda x: blink.allreduce(x, op=blink.Sum), tf.constant(2.0))
    return found + wrong(scalar, tf.add_n([weights(r, ()) for r in ranks()]))


def gradient_of_selections():
    """Min and Max: to the rank that has it, in equal shares to several."""
    size, rank = blink.size(), blink.rank()
    mine = tf.constant([float(rank), 5.0, -float(rank)])
    total = tf.add_n([weights(r, (3,)) for r in ranks()]).numpy()
    largest = total * [rank == size - 1, 1 / size, rank == 0]
    smallest = total * [rank == 0, 1 / size, rank == size - 1]
    found = wrong(both_ways(lambda x: blink.allreduce(x, op=blink.Max), mine), largest)
    return found + wrong(
        both_ways(lambda x: blink.allreduce(x, op=blink.Min, prescale_factor=2.0), mine),
        2 * smallest,
    )


def gradient_of_products():
    """The product of the others' values, also where some are zero."""
    values = np.array([[2.0 + r, 0.0 if r == 0 else 3.0, 0.0] for r in ranks()])
    rest = np.prod(np.delete(values, blink.rank(), 0), axis=0)
    total = tf.add_n([weights(r, (3,)) for r in ranks()]).numpy()
    mine = tf.constant(values[blink.rank()], tf.float32)
    return wrong(both_ways(lambda x: blink.allreduce(x, op=blink.Product), mine), total * rest)


def gradient_of_grouped_allreduce():
    mine = [given(blink.rank()), given(blink.rank(), (4,))]
    wanted = [average([weights(r, s) for r in ranks()]) for s in ((2, 3), (4,))]
    return wrong(both_ways(lambda *x: blink.grouped_allreduce(list(x)), *mine), *wanted)


def rows_of(rank):
    return rank + 1


def all_rows():
    return sum(rows_of(r) for r in ranks())


def own_rows(of_all):
    start = sum(rows_of(r) for r in range(blink.rank()))
    return of_all[start : start + rows_of(blink.rank())]


def gradient_of_allgather():
    rank = blink.rank()
    whole = average([weights(r, (all_rows(), 2)) for r in ranks()])
    found = wrong(both_ways(blink.allgather, given(rank, (rows_of(rank), 2))), own_rows(whole))
    scalars = average([weights(r, (blink.size(),)) for r in ranks()])
    return found + wrong(both_ways(blink.allgather, tf.constant(3.0)), scalars[rank])


def gradient_of_grouped_allgather():
    rank = blink.rank()
    whole = average([weights(r, (all_rows(), 2)) for r in ranks()])
    even = average([weights(r, (2 * blink.size(),)) for r in ranks()])
    ways = both_ways(
        lambda *x: blink.grouped_allgather(list(x)),
        given(rank, (rows_of(rank), 2)),
        given(rank, (2,)),
    )
    return wrong(ways, own_rows(whole), even[2 * rank : 2 * rank + 2])


def gradient_of_broadcast():
    found = []
    for root in ranks():
        want = average([weights(r) for r in ranks()]) * float(blink.rank() == root)
        ways = both_ways(lambda x, root=root: blink.broadcast(x, root), given(blink.rank()))
        found += wrong(ways, want)
    return found


def gradient_of_alltoall():
    """What a row was multiplied with on the rank to which it went."""
    rank, size = blink.rank(), blink.size()
    sent = [[r + i for i in ranks()] for r in ranks()]  # rows from r to i
    found = []
    for splits in (sent[rank], tf.constant(sent[rank])):
        want = []
        for i in ranks():
            rows = weights(i, (sum(sent[r][i] for r in ranks()), 2)).numpy()
            start = sum(sent[r][i] for r in range(rank))
            want.append(rows[start : start + sent[rank][i]])
        mine = given(rank, (sum(sent[rank]), 2))
        ways = both_ways(lambda x, s=splits: blink.alltoall(x, s)[0], mine)
        found += wrong(ways, np.concatenate(want))
    even = [weights(i, (size, 2)).numpy()[rank : rank + 1] for i in ranks()]
    return found + wrong(both_ways(blink.alltoall, given(rank, (size, 2))), np.concatenate(even))


def gradient_of_reducescatter():
    """All rows, times the size for sums, and the factors."""
    rows = blink.size() + 1
    each = [rows // blink.size() + (r < rows % blink.size()) for r in ranks()]
    whole = np.concatenate([weights(r, (each[r], 2)).numpy() for r in ranks()])
    mine = given(blink.rank(), (rows, 2))
    found = wrong(both_ways(blink.reducescatter, mine), whole)
    sums = both_ways(
        lambda x: blink.reducescatter(x, op=blink.Sum, prescale_factor=0.5, postscale_factor=3.0),
        mine,
    )
    found += wrong(sums, whole * blink.size() * 1.5)
    group = both_ways(lambda *x: blink.grouped_reducescatter(list(x)), mine, mine + 1)
    found += wrong(group, whole, whole)
    try:
        both_ways(lambda x: blink.reducescatter(x, op=blink.Max), mine)
        found.append("a gradient of Max")
    except NotImplementedError as err:
        if "the gradient is there for Sum and Average only" not in str(err):
            found.append(str(err))
    return found


def gradient_of_compressed():
    want = average([weights(r) for r in ranks()])
    found = []
    for compression in (blink.Compression.fp16, blink.Compression.bf16):
        ways = both_ways(
            lambda x, c=compression: blink.allreduce(x, compression=c), given(blink.rank())
        )
        for way, (got,) in ways.items():
            if got.dtype != tf.float32 or not np.allclose(got, want, rtol=1e-2):
                found.append(f"{way}: {got}")
    return found


def gradient_of_indexed_slices():
    """Through the values; the indices have none."""
    rank, size = blink.rank(), blink.size()

    def values(x):
        return blink.allreduce(tf.IndexedSlices(x, tf.range(2)), op=blink.Average).values

    whole = average([weights(r, (2 * size, 3)) for r in ranks()]) / size
    return wrong(both_ways(values, given(rank)), whole[2 * rank : 2 * rank + 2])


def gradient_over_process_sets():
    if blink.size() < 3:
        return []
    pair = blink.add_process_set([0, 2])
    found = []
    if pair.included():
        want = weights(0) + weights(2)
        mine = given(blink.rank())
        found += wrong(
            both_ways(lambda x: blink.allreduce(x, op=blink.Sum, process_set=pair), mine), want
        )
        place = pair.rank()
        whole = (weights(0, (4, 3)) + weights(2, (4, 3))) / 2
        found += wrong(
            both_ways(lambda x: blink.allgather(x, process_set=pair), mine),
            whole[2 * place : 2 * place + 2],
        )
        found += wrong(
            both_ways(lambda x: blink.broadcast(x, 2, process_set=pair), mine),
            want / 2 * float(blink.rank() == 2),
        )
    blink.remove_process_set(pair)
    return found


def gradient_of_variables_and_none():
    """Variables are watched by themselves; who is not asked gets None, and no call is made."""
    variable = tf.Variable(given(blink.rank()))
    other = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        result = blink.allreduce(variable)
        both = blink.grouped_allreduce([variable, other])
        loss = tf.reduce_sum(result) + tf.reduce_sum(both[0])
    gradients = tape.gradient(loss, [variable, other])
    with tf.GradientTape() as tape:
        whole = blink.allreduce(tf.constant(3))
        loss = tf.reduce_sum(tf.cast(whole, tf.float32) * variable)
    plain = tape.gradient(loss, variable)
    found = []
    if not np.allclose(gradients[0], 2 * np.ones((2, 3))):
        found.append(f"variable: {gradients[0]}")
    if gradients[1] is not None and np.any(gradients[1].numpy()):
        found.append(f"other: {gradients[1]}")
    if not np.allclose(plain, np.full((2, 3), 3.0)):
        found.append(f"whole numbers: {plain}")
    return found


def second_derivatives():
    mine = tf.constant([2.0, 3.0])
    found = []

    def twice(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(blink.allreduce(x * x * x, op=blink.Sum))
            first = inner.gradient(y, x)
        return outer.gradient(first, x)

    for how in (twice, tf.function(twice)):
        got = how(mine)
        want = mine * 6 * blink.size()
        if not np.allclose(got, want):
            found.append(f"{got}, want {want}")
    return found


def gradients_in_another_order():
    """Ranks come to the same calls of the backward pass of a graph in different orders."""

    def gradients(one, two):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([one, two])
            first = blink.allreduce(one, op=blink.Sum, name="first")
            second = blink.allreduce(two, op=blink.Sum, name="second")
        pairs = [(first, one), (second, two)]
        order = pairs if blink.rank() % 2 == 0 else pairs[::-1]
        own = tf.constant([1.0 + blink.rank()])
        got = {x.ref(): tape.gradient(y, x, own) for y, x in order}
        return got[one.ref()], got[two.ref()], tape.gradient(first, one)

    got = tf.function(gradients, autograph=False)(tf.constant([1.0]), tf.constant([2.0]))
    want = sum(r + 1.0 for r in ranks())
    values = [float(each[0]) for each in got]
    return [] if values == [want, want, blink.size()] else [f"{values}, want {want}"]


def gradient_of_another_dtype():
    """TensorFlow's own zeros, and many a script's ones, are float32 whatever they belong to."""
    found = []
    mine = tf.constant([[1.0, 2.0]], tf.float64)
    calls = {
        "allreduce": lambda x: blink.allreduce(x, op=blink.Sum),
        "allgather": blink.allgather,
        "broadcast": lambda x: blink.broadcast(x, 0),
        "reducescatter": lambda x: blink.reducescatter(tf.repeat(x, blink.size(), 0)),
        "alltoall": lambda x: blink.alltoall(tf.repeat(x, blink.size(), 0)),
    }
    for name, call in calls.items():
        with tf.GradientTape() as tape:
            tape.watch(mine)
            result = call(mine)
        gradient = tape.gradient(result, mine, tf.ones(result.shape))
        if gradient.dtype != tf.float64 or gradient.shape != mine.shape:
            found.append(f"{name}: {gradient}")
    return found
