"""`shard`: each rank its part of data sets and arrays."""

import numpy as np
import tensorflow as tf

import blinkrun.tf as blink

CASES = (
    "elements_dealt",
    "batches_cut",
    "joined_batches_divided",
    "arrays_dealt",
    "elements_shuffled",
    "elements_of_other_kinds",
    "parts_of_a_set",
    "parts_refused",
    "parts_trained_on_with_join",
    "names_by_star",
)

Dataset = tf.data.Dataset
COUNTS = (0, 1, 11, 24)


def plain(dataset):
    return [np.asarray(each).tolist() for each in dataset]


def unknown(dataset):
    return dataset.filter(lambda _: True)


def refused(call):
    try:
        call()
    except Exception as err:
        return [[each.__name__ for each in type(err).__mro__], str(err)]
    return [[], ""]


def elements_dealt():
    found = {}
    for count in COUNTS:
        for even in ("drop", "repeat", None):
            base = Dataset.range(count)
            known = blink.shard(base, even=even)
            found[f"{count} {even}"] = [
                plain(known),
                plain(blink.shard(unknown(base), even=even)),
                int(known.cardinality()),
            ]
    endless = blink.shard(Dataset.range(5).repeat())
    found["endless"] = plain(endless.take(7))
    return found


def batches_cut():
    found = {}
    for count in COUNTS:
        for even in ("drop", "repeat", None):
            base = Dataset.range(count)
            known = blink.shard(base, 3, even=even)
            found[f"{count} {even}"] = [
                plain(known),
                plain(blink.shard(unknown(base), 3, even=even)),
                int(known.cardinality()),
            ]
    return found


def joined_batches_divided():
    found = {}
    for count in COUNTS:
        for even in ("drop", "repeat", None):
            batches = Dataset.range(count).batch(6)
            found[f"{count} {even}"] = plain(blink.shard(batches, batched=True, even=even))
    whole = Dataset.range(24).batch(12, drop_remainder=True)
    part = blink.shard(whole, batched=True)
    found["static"] = [part.element_spec.shape.as_list(), int(part.cardinality())]
    return found


def arrays_dealt():
    x, y = np.arange(23).reshape(23, 1), np.arange(23) ** 2
    found = {}
    for even in ("drop", "repeat", None):
        for batch_size in (None, 4):
            mine, marks = blink.shard((x, y), batch_size, even=even)
            assert np.array_equal(mine[:, 0] ** 2, marks)
            found[f"{even} {batch_size}"] = mine[:, 0].tolist()
    named = blink.shard({"x": x, "others": [tf.constant(y), None]}, shuffle=True, seed=3)
    same = blink.shard({"x": x}, shuffle=True, seed=3)["x"]
    is_view = blink.shard(x).base is not None
    pairs = np.array_equal(named["x"][:, 0] ** 2, named["others"][0].numpy())
    alike = np.array_equal(named["x"], same) and named["others"][1] is None
    return [found, named["x"][:, 0].tolist(), bool(pairs), bool(alike), is_view]


def elements_shuffled():
    """Alike on all ranks though their programs have other seeds; anew in every epoch."""
    tf.random.set_seed(blink.rank())
    base = Dataset.range(24).map(lambda x: x + 0)
    epochs = {}
    for name, options in {
        "all": {"shuffle": True},
        "again": {"shuffle": True},
        "buffer": {"shuffle": 8, "seed": 5},
        "batches": {"shuffle": True, "batch_size": 4},
    }.items():
        dataset = blink.shard(base, **options)
        epochs[name] = [np.concatenate([np.atleast_1d(e) for e in dataset]) for _ in range(2)]
    repeated = blink.shard(base, shuffle=True).repeat(2)
    epochs["repeated"] = np.split(np.array(plain(repeated)), 2)
    return {name: [each.tolist() for each in both] for name, both in epochs.items()}


def elements_of_other_kinds():
    """Tuples, dicts, ragged and sparse elements."""
    size = blink.size()
    count = 2 * size + 1
    ragged = tf.ragged.constant([[float(i)] * (i % 3) for i in range(count)])
    pairs = Dataset.from_tensor_slices(({"a": tf.range(count)}, ragged))
    taken = [[int(d["a"]), r.numpy().tolist()] for d, r in blink.shard(pairs)]
    unsure = pairs.filter(lambda d, r: True)
    cut = [[int(d["a"]), r.numpy().tolist()] for d, r in blink.shard(unsure, 2).unbatch()]
    sparse = Dataset.from_tensor_slices(tf.sparse.from_dense(tf.eye(count)))
    dense = [tf.sparse.to_dense(each).numpy().argmax() for each in blink.shard(sparse)]
    rows = Dataset.from_tensors((ragged, tf.range(count)))
    divided = [[a.nrows().numpy(), b.numpy().tolist()] for a, b in blink.shard(rows, batched=True)]
    return [taken, cut, [int(each) for each in dense], [[int(a), b] for a, b in divided]]


def parts_of_a_set():
    if blink.size() < 3:
        return plain(blink.shard(Dataset.range(4), even=None))
    pair = blink.add_process_set([0, 2])
    included = pair.included()
    found = plain(blink.shard(Dataset.range(4), process_set=pair)) if included else []
    outside = refused(lambda: blink.shard(Dataset.range(4), process_set=pair))[1]
    blink.remove_process_set(pair)
    return found if included else outside


def parts_refused():
    base = Dataset.range(8)
    loose = tf.data.Options()
    loose.deterministic = False
    tf.random.set_seed(0)
    alike = plain(blink.shard(base.shuffle(8, seed=1)))
    tf.random.set_seed(blink.rank())
    seeds = refused(lambda: blink.shard(base.shuffle(8, seed=1).batch(2)))
    sparse = Dataset.from_tensors(tf.sparse.from_dense([1]))
    return [
        sorted(each for part in blink.allgather_object(alike) for each in part),
        seeds,
        refused(lambda: blink.shard(base.with_options(loose))),
        refused(lambda: blink.shard(unknown(base), shuffle=True)),
        refused(lambda: blink.shard(base, even="often")),
        refused(lambda: blink.shard(base, 0)),
        refused(lambda: blink.shard(base.batch(2), 2, batched=True)),
        refused(lambda: blink.shard(base, batched=True)),
        refused(lambda: blink.shard(sparse, batched=True)),
        refused(lambda: blink.shard(np.arange(4), batched=True)),
        refused(lambda: blink.shard((np.arange(4), np.arange(5)))),
        refused(lambda: blink.shard(np.array(1.0))),
        refused(lambda: blink.shard(iter([1, 2]))),
        refused(lambda: blink.shard([])),
    ]


def parts_trained_on_with_join():
    """Ranks with fewer batches join; the sums of the others go on without them."""
    dataset = blink.shard(Dataset.range(1, 2 * blink.size() + 2), even=None)
    sums = []
    for element in dataset:
        value = tf.cast(element, tf.float32)
        sums.append(float(blink.allreduce(value, op=blink.Sum, name="uneven")))
    last = int(blink.join())
    return [sums, last]


def names_by_star():
    """Every name that is offered is there."""
    names = {}
    exec("from blinkrun.tf import *", names)
    return sorted(set(blink.__all__) - set(names))
