"""Errors of wrapped Keras optimizers, and the other names of blinkrun.tf.keras."""

from __future__ import annotations

import pytest

ARGUMENTS = {
    "op": "Average or Sum",
    "passes": "backward_passes_per_step is 0",
    "predivide": "need a number above 0",
    "predivide with Sum": "op=Average only",
    "groups": "groups is 'all'",
    "bucket_bytes": "bucket_bytes is 0",
    "process_set": "takes a ProcessSet",
    "compression": "compression is 'fp16'",
}
NOT_OPTIMIZERS = {
    "twice": "wrapped by DistributedOptimizer already",
    "inside": "wrapped by DistributedOptimizer already",
    "class": "got the class SGD; call it",
    "name": "keras.optimizers.get('adam')",
    "other": "numpy.ndarray",
    "two ways": "do the same; give one",
    "layers": "local_layers are layers",
    "classes": "custom_optimizers are classes",
}


def check(error, text, kind="ValueError"):
    assert error is not None
    assert kind in error["kinds"]
    assert text in error["text"]
    assert "\n" not in error["text"]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_bad_arguments_are_named(keras_job, name):
    for answer in keras_job.of("wrong_arguments_of_optimizers"):
        check(answer[name], ARGUMENTS[name])


@pytest.mark.parametrize("name", NOT_OPTIMIZERS)
def test_what_cannot_be_wrapped_is_named(keras_job, name):
    for answer in keras_job.of("not_optimizers"):
        check(answer[name], NOT_OPTIMIZERS[name])


def test_parts_of_a_multi_optimizer_are_refused_in_a_loss_scale_optimizer(keras_job):
    answers = [each for each in keras_job.of("parts_of_a_multi_optimizer") if each]
    for answer in answers:
        check(answer, "wrap the MultiOptimizer instead")


def test_a_variable_that_came_later_is_named(keras_job):
    for answer in keras_job.of("a_variable_that_came_later"):
        text = "variable 'late' is not among the 4" if keras_job.size > 1 else "Unknown variable"
        assert text in answer["text"]


def test_gradients_without_variables_are_counted(keras_job):
    for none, one, unknown in keras_job.of("too_few_gradients"):
        assert none is None
        if keras_job.size > 1:
            check(one, "1 gradients of 2 variables")
            check(unknown, "call build() first")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shape", "gradient 'w0' is float32 (3,)"),
        ("name", "gradient 'v0'"),
        ("argument", "op=Sum"),
        ("absent", "gradient 'w1'"),
    ],
)
def test_ranks_that_differ_are_told_in_what(keras_job, name, text):
    for answer in keras_job.of("ranks_that_differ"):
        if keras_job.size == 1:
            assert answer[name] is None
        else:
            check(answer[name], text, "RuntimeError")
            assert f"rank {keras_job.size - 1}" in answer[name]["text"]
        assert answer["after"] is None


def test_values_are_reduced_and_moved(keras_job):
    size = keras_job.size
    mean = (size - 1) / 2
    for rank, answer in enumerate(keras_job.of("values")):
        assert answer["average"] == pytest.approx([mean, 1 + mean, 2 + mean])
        assert answer["number"] == pytest.approx(size * mean)
        assert answer["variable"] == [size - 1] * 2
        assert answer["scaled"] == [2.0 * size, 4.0 * size]
        assert answer["compressed"] == [1.0, 2.0]
        assert answer["gathered"] == [[r] for r in range(size) for _ in range(r + 1)]
        assert answer["from the last"] == [size - 1, 7]
        rows = 2 if size == 1 or rank == 0 else 1
        assert answer["scattered"] == [[size, size]] * rows


def test_variables_of_any_dtype_are_broadcast(keras_job):
    last = float(keras_job.size - 1)
    for answer in keras_job.of("variables_of_all_kinds"):
        assert answer == [[last, last]] * 5 + [[float(bool(last))] * 2, [last, last]]


def test_what_is_not_there_says_so(keras_job):
    for answer in keras_job.of("bad_values"):
        check(answer["global"], "broadcast_variables(model.variables", "RuntimeError")
        check(answer["root"], f"root_rank is {keras_job.size}")
        check(answer["elastic"], "later part", "AttributeError")
        check(answer["nothing"], "no attribute 'nothing'", "AttributeError")


def test_all_names_are_there(keras_job):
    assert keras_job.of("names") == [[]] * keras_job.size
