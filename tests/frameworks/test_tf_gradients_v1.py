"""`blinkrun.tf.DistributedOptimizer` on optimizers of ``tf.compat.v1.train``."""

from __future__ import annotations

from typing import Any

import pytest


def same_on_all(answers: list[Any]) -> Any:
    assert all(each == answers[0] for each in answers)
    return answers[0]


def test_sessions_train_as_one_process_on_the_joined_batch(tf_job: Any) -> None:
    same_on_all(tf_job.of("v1_sessions_equal_the_joined_batch"))


def test_passes_are_added_up_and_reduced_once(tf_job: Any) -> None:
    found = same_on_all(tf_job.of("v1_passes_in_a_session"))
    assert len(set(found)) == 2


def test_passes_work_eagerly_and_in_functions(tf_job: Any) -> None:
    tf_job.of("v1_eagerly_and_in_functions")


def test_optimizers_of_keras_are_wrapped_as_those(tf_job: Any) -> None:
    tf_job.of("v1_keras_optimizers_go_to_keras")


def test_local_variables_keep_their_gradients(tf_job: Any) -> None:
    tf_job.of("v1_local_variables")


def test_adasum_combines_the_changes_of_steps(tf_job: Any) -> None:
    same_on_all(tf_job.of("v1_adasum"))


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("twice", "wrapped by DistributedOptimizer already"),
        ("adasum twice", "wrapped by DistributedOptimizer already"),
        ("class", "wraps an optimizer of Keras or of tf.compat.v1.train, got object"),
        ("op", "reduced by Average, Sum or Adasum"),
        ("passes", "backward_passes_per_step is 0"),
        ("average", "average_aggregated_gradients does not go with op=Adasum"),
        ("apply", "apply_gradients() before compute_gradients()"),
        ("sparse", "give sparse_as_dense=True"),
    ],
)
def test_bad_use_of_an_optimizer_is_named(tf_job: Any, what: str, text: str) -> None:
    for told in tf_job.of("v1_usage"):
        assert told[what] is not None
        assert text in told[what][1]
