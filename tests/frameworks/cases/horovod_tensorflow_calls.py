"""What a script sees of `horovod.tensorflow` and of `horovod.keras` beside training.

Names, signatures, absences, kinds of errors, states.
"""

import ast
import importlib
import inspect
import sys
from pathlib import Path

import horovod.keras as hvd_keras
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_tf_keras
import numpy as np
import pytest

assert "tensorflow" not in sys.modules  # it is loaded when something needs it
import tensorflow as tf  # noqa: E402

DATA = Path(sys.argv[1])
MODULES = {"tensorflow": hvd, "tensorflow_keras": hvd_tf_keras, "keras": hvd_keras}


def check_names():
    for file, module in MODULES.items():
        names = (DATA / f"{file}_names.txt").read_text().split()
        absent = {"LocalGradientAggregationHelper"}
        missing = [n for n in names if n not in absent and getattr(module, n, None) is None]
        assert not missing, (file, missing)
        assert set(names) - absent <= set(module.__all__), file
        scope = {}
        exec(f"from {module.__name__} import *", scope)
        assert set(names) - absent <= set(scope)
    assert (
        hvd.mpi_ops.allreduce is hvd.allreduce is importlib.import_module("blinkrun.tf").allreduce
    )
    assert (hvd.mpi_built(), hvd.mpi_enabled(), hvd.nccl_built()) == (True, True, 0)


def peer_signature(line):
    """Return the name and (parameter, default in the words of its source) of a line of the list."""
    place, rest = line.split("(", 1)
    function = ast.parse(f"def _({rest}: pass").body[0]
    given = function.args
    names = [each.arg for each in given.args]
    defaults = [None] * (len(names) - len(given.defaults)) + list(map(ast.unparse, given.defaults))
    return place, list(zip(names, defaults, strict=True))


SPELLED = {
    "Average": lambda value: value == hvd.Average,
    "Compression.none": lambda value: value in (hvd.Compression.none, None),
    "global_process_set": lambda value: value is hvd.global_process_set,
}


def check_signatures():
    """Names, order and defaults are Horovod's; what is added comes after and has a default."""
    checked = 0
    for line in (DATA / "tensorflow_signatures.txt").read_text().splitlines():
        place, wanted = peer_signature(line)
        module, name = place.rsplit(".", 1)
        ours = inspect.signature(getattr(importlib.import_module(module), name)).parameters
        named = [p for p in ours.values() if p.kind is not p.VAR_KEYWORD]
        has_rest = len(named) < len(ours)
        for (wanted_name, default), found in zip(wanted, named, strict=False):
            assert found.name == wanted_name, (line, str(ours))
            if default is None:
                assert found.default is found.empty, (line, found)
            elif default in SPELLED:
                assert SPELLED[default](found.default), (line, found)
            else:
                assert found.default == ast.literal_eval(default), (line, found)
        assert len(named) >= len(wanted), (line, str(ours))
        assert all(p.default is not p.empty for p in named[len(wanted) :]), line
        assert has_rest or "**kwargs" not in line, line
        checked += 1
    assert checked > 60, checked


def check_absences():
    for module, name, why in (
        ("horovod.tensorflow.elastic", "run", "later part"),
        ("horovod.tensorflow.keras.elastic", "CommitStateCallback", "later part"),
        ("horovod.keras.elastic", "run", "later part"),
        ("horovod.common.elastic", "run_fn", "later part"),
        ("horovod.tensorflow.gradient_aggregation", "LocalGradientAggregationHelper", "inside"),
    ):
        with pytest.raises(ImportError, match=rf"{module}.{name} is absent .*{why}"):
            getattr(importlib.import_module(module), name)
    for name, why in (
        ("tensorflow.data.compute_service", "reads for itself"),
        ("_keras.callbacks", "import horovod.tensorflow.keras"),
        ("tensorflow.nothing", "no meaning here"),
    ):
        with pytest.raises(ModuleNotFoundError, match=rf"horovod\.\S+ is absent .*{why}"):
            importlib.import_module(f"horovod.{name}")


def check_errors(rank):
    with pytest.raises(tf.errors.FailedPreconditionError, match="'uneven'"):
        hvd.allreduce(tf.zeros(2 + rank), name="uneven")
    with pytest.raises(tf.errors.FailedPreconditionError, match="'graph'"):
        tf.function(lambda x: hvd.allreduce(x, name="graph"))(tf.zeros(2 + rank))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        failing = hvd.allreduce(tf.zeros(2 + rank), name="session")
        with pytest.raises(tf.errors.FailedPreconditionError, match="'session'"):
            session.run(failing)
    unknown = hvd.ProcessSet([0])
    unknown.process_set_id = 10
    with pytest.raises(ValueError, match="10"):
        hvd.allreduce(tf.zeros(2), process_set=unknown)
    with pytest.raises(tf.errors.InvalidArgumentError):
        hvd.alltoall(tf.zeros(3))
    slices = tf.IndexedSlices(tf.zeros([1, 2]), tf.constant([0]))
    with pytest.raises(NotImplementedError):
        hvd.allreduce(slices, op=hvd.Min)
    with pytest.raises(ValueError, match="op"):
        hvd.handle_average_backwards_compatibility(hvd.Sum, True)


def check_states(rank):
    variables = [tf.Variable([1.0 + rank]), tf.Variable(np.full((2, 2), 3 + rank), dtype=tf.int64)]
    state = hvd.elastic.TensorFlowState(variables, batch=rank, epoch=5 + rank)
    state.sync()
    assert [v.numpy().tolist() for v in variables] == [[1.0], [[3, 3], [3, 3]]]
    assert (state.batch, state.epoch) == (0, 5)
    variables[0].assign([7.0])
    state.batch = 9
    state.restore()
    assert (variables[0].numpy().tolist(), state.batch) == ([1.0], 0)
    variables[0].assign([7.0])
    state.batch = 9
    state.commit()
    variables[0].assign([8.0])
    state.restore()
    assert (variables[0].numpy().tolist(), state.batch) == ([7.0], 9)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="build"):
        hvd_keras.elastic.KerasState(model)
    model.build((1, 2))
    state = hvd_keras.elastic.KerasState(model, tf.keras.optimizers.Adam(), step=rank)
    state.sync()
    kernels = hvd.allgather_object(model.get_weights()[0])
    assert all((kernel == kernels[0]).all() for kernel in kernels)


def check_values(rank, size):
    assert np.asarray(hvd_keras.allreduce([1.0, rank])).tolist() == [1.0, (size - 1) / 2]
    assert np.asarray(hvd_keras.allreduce([2.0], op=hvd_keras.Sum)).tolist() == [2.0 * size]
    assert np.asarray(hvd_keras.allreduce([2.0], average=False)).tolist() == [2.0 * size]
    assert hvd.mpi_ops._allreduce(tf.constant([2.0])).numpy().tolist() == [2.0 * size]  # a sum
    refs = hvd.vars_to_refs([tf.Variable(1.0), [tf.Variable(2.0)]])
    assert hvd.refs_to_vars(refs)[1][0].numpy() == 2.0
    assert [len(part) for part in hvd.split_list(range(7), 3)] == [3, 2, 2]
    assert hvd.util._executing_eagerly()
    assert not hvd.gpu_available("tensorflow")


def main():
    hvd.init(process_sets=[hvd.ProcessSet([0])])
    rank, size = hvd.rank(), hvd.size()
    found = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
    assert found == {0: list(range(size)), 1: [0]}
    check_names()
    check_signatures()
    check_absences()
    check_errors(rank)
    check_states(rank)
    check_values(rank, size)
    print(f"rank {rank} of {size}: ok")


main()
