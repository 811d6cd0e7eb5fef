"""`blinkrun.tf.DistributedGradientTape`: gradients of all ranks, whatever is asked for."""

from __future__ import annotations

from typing import Any

import pytest


def same_on_all(answers: list[Any]) -> Any:
    assert all(each == answers[0] for each in answers)
    return answers[0]


def test_gradients_are_those_of_the_joined_batch_in_every_way(tf_job: Any) -> None:
    digests = same_on_all(tf_job.of("tape_gradients_in_all_ways"))
    for name in ("usual", "sum", "predivided", "small_buckets", "two_groups", "many_groups"):
        assert len(digests[name]) == 1, f"{name}: eager and graph, with and without overlap differ"


def test_training_in_a_function_equals_one_process_on_the_joined_batch(tf_job: Any) -> None:
    same_on_all(tf_job.of("tape_training_in_a_function"))


def test_sparse_training_keeps_ranks_alike(tf_job: Any) -> None:
    same_on_all(tf_job.of("tape_sparse_training"))


@pytest.mark.parametrize(
    "case",
    [
        "tape_sources_of_every_form",
        "tape_that_is_wrapped_early_or_late",
        "tape_sparse_gradients",
        "tape_dtypes",
        "tape_shapes_that_a_graph_does_not_know",
        "tape_two_in_one_graph",
        "tape_in_two_threads",
        "tape_in_loops_and_branches",
        "tape_process_sets",
        "tape_jacobians",
        "tape_results_stay_what_they_are",
        "tape_adasum",
    ],
)
def test_a_tape_gives_what_it_should(tf_job: Any, case: str) -> None:
    tf_job.of(case)


def test_a_train_step_of_keras_may_use_the_tape(tf_job: Any) -> None:
    same_on_all(tf_job.of("tape_in_a_train_step_of_keras"))


def test_xla_is_refused_in_one_line_but_on_one_rank(tf_job: Any) -> None:
    for told in tf_job.of("tape_where_xla_compiles"):
        if tf_job.size == 1:
            assert told == 4.0
        else:
            lines = [line for line in told[2].splitlines() if "set jit_compile=False" in line]
            assert len(lines) == 1
            assert "DistributedGradientTape" in lines[0]


def test_layers_of_this_rank_keep_their_gradients(tf_job: Any) -> None:
    told = same_on_all(tf_job.of("tape_local_sources"))
    assert told == "All local layers must be of tf.keras.layers.Layer type."


def test_groups_share_a_bucket(tf_job: Any) -> None:
    buckets = same_on_all(tf_job.of("tape_groups_of_variables"))
    assert buckets is None or buckets == [[1], [3, 0], [4, 2]]


def test_a_rank_may_retrace_while_others_do_not(tf_job: Any) -> None:
    counts = tf_job.of("tape_retraced_by_some_ranks")
    assert counts == [4, *[1] * (tf_job.size - 1)]


def test_ranks_that_have_joined_count_as_zeros(tf_job: Any) -> None:
    size = tf_job.size
    for rank, found in enumerate(tf_job.of("tape_steps_of_uneven_number")):
        wanted = [(size - step) / size for step in range(rank + 1)]
        assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("shape", "gradient 'kernel' is float32 (2, 4), rank 0 has float32 (2, 3)"),
        ("shape in a graph", "gradient 'kernel' is float32 (2, 4), rank 0 has float32 (2, 3)"),
        ("number", "'late'"),
        ("name", "has gradient 'late' where rank 0 has 'bias'"),
        ("order", "has gradient 'late' where rank 0 has 'bias'"),
        ("none", "gradient 'late' is None, rank 0 has float32 (2,)"),
        ("none in a graph", "gradient 'late' is None, rank 0 has float32 (2,)"),
        ("op", "op=Sum, on rank 0 with op=Average"),
        ("buckets in a graph", "gradient 'kernel' is float32 (2, 4), rank 0 has float32 (2, 3)"),
        ("buckets again in a graph", "gradient 'kernel' is float32 (2, 4)"),
        ("sparse", "gradient 'bias' is IndexedSlices of float32 rows ()"),
    ],
)
def test_ranks_that_differ_are_told_in_what(tf_job: Any, what: str, text: str) -> None:
    told = tf_job.of("tape_ranks_that_differ")
    if tf_job.size == 1:
        assert told == [None]
        return
    for each in told:
        is_tensorflows, kind, message = each[what]
        assert is_tensorflows
        assert text in message
        assert f"rank {tf_job.size - 1}" in message
        if "graph" not in what:
            assert kind == "MismatchError"
            assert "\n" not in message


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("twice", "wrapped by DistributedGradientTape already"),
        ("no tape", "wraps a tf.GradientTape, got int"),
        ("op", "reduced by Average, Sum or Adasum"),
        ("predivide", "gradient_predivide_factor goes with op=Average only"),
        ("groups", "groups is 0; give a number above 0"),
        ("compression", "compression is 3"),
        ("process set", "process_set takes a ProcessSet"),
        ("bucket", "bucket_bytes is 0"),
    ],
)
def test_bad_arguments_are_named(tf_job: Any, what: str, text: str) -> None:
    for told in tf_job.of("tape_usage"):
        assert told[what] is not None
        assert text in told[what][2]
