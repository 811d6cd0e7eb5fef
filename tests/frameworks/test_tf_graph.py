"""Calls of the engine as ops of a graph, on 1 to 3 ranks; ranks have one thread each for ops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import Job
from support.needs import need

COMPILED = "cannot run in a function that XLA compiles; set jit_compile=False"


def test_ranks_may_order_their_calls_as_they_like(tf_job: Job) -> None:
    size = float(tf_job.size)
    for found in tf_job.of("opposite_order_in_a_function"):
        assert found == [[size * factor] * 3 for factor in range(1, 7)]
    for found in tf_job.of("opposite_order_in_branches_and_loops"):
        assert found == [[2 * size] * 3, [1.0] * 3, [1.0] * 3]


def test_what_depends_on_a_call_need_not_wait_for_others(tf_job: Job) -> None:
    size = float(tf_job.size)
    for found in tf_job.of("a_chain_against_a_chain"):
        assert found == [[size] * 2, [size] * 2, [size * size] * 2]


def test_every_call_runs_once_a_run(tf_job: Job) -> None:
    for found in tf_job.of("unused_equal_and_constant_calls_run"):
        assert found == [{"unused": n, "equal": 2 * n, "constant": n} for n in (1, 2, 3)]


def test_the_iterations_of_a_loop_keep_their_order(tf_job: Job) -> None:
    for found in tf_job.of("iterations_keep_their_order"):
        assert found == [float(step * tf_job.size) for step in range(20)]


def test_calls_in_functions_in_functions_with_gradients(tf_job: Job) -> None:
    size = float(tf_job.size)
    for answers, retraced in tf_job.of("functions_in_functions_and_gradients"):
        assert answers == [5 * size**2, [2 * size**2, 4 * size**2], [size, size]]
        assert retraced == [[size], [size] * 2, [size] * 3]


def test_inputs_and_results_are_not_copied(tf_job: Job) -> None:
    for found in tf_job.of("memory_is_shared_both_ways"):
        assert found == {"input": True, "writable": False, "value": True, "result": True}


def test_memory_is_kept_as_long_as_tensorflow_uses_it(tf_job: Job) -> None:
    for found in tf_job.of("memory_is_kept_as_long_as_it_is_used"):
        is_kept, gone, is_gone_later, inputs_gone, kept, variable = found
        assert is_kept
        assert (gone, inputs_gone) == (20, 22)
        assert is_gone_later
        assert kept == [2.0] * 5
        assert variable == [43.0] * 5


def test_all_kinds_and_numbers_of_elements(tf_job: Job) -> None:
    for wrong, kind, text in tf_job.of("kinds_of_elements"):
        assert wrong == []
        assert kind == "InvalidBufferError"
        assert text.endswith("local: dtype string is not supported in a graph")


def test_shapes_that_are_not_known_when_it_is_traced(tf_job: Job) -> None:
    for ranks, sizes in tf_job.of("shapes_that_are_not_known"):
        assert ranks == [[[], True], [[3], True], [[2, 2], True]]
        assert sizes == [None, 2]


def test_an_error_has_its_kind_and_its_text(tf_job: Job) -> None:
    expected = {
        "mismatch": ["FailedPreconditionError", "rank 1: x differs; call it alike"],
        "usage": ["InvalidArgumentError", "splits are wrong; give others"],
        "absent": ["UnimplementedError", "no such reduction"],
        "type": ["InvalidArgumentError", "TypeError: no number"],
        "other": ["UnknownError", "OSError: broken"],
        "tensorflows": ["OutOfRangeError", "too far"],
    }
    for found in tf_job.of("kinds_of_errors"):
        assert found == {
            f"{kind} {when}": told for kind, told in expected.items() for when in ("early", "late")
        }


def test_a_session_gets_the_same_errors(tf_job: Job) -> None:
    for kind, is_told, good in tf_job.of("errors_in_a_session"):
        assert kind == "FailedPreconditionError"
        assert is_told
        assert good == [2.0, 3.0]


def test_a_mismatch_is_told_to_all_ranks_and_the_function_works_again(tf_job: Job) -> None:
    if tf_job.size == 1:
        return
    for answers in tf_job.of("a_mismatch_is_told_to_all_and_over"):
        assert len(answers) == 2
        for kind, said, again in answers:
            assert kind == "FailedPreconditionError"
            assert len(said) == 1
            assert said[0].startswith(
                "rank 1: allreduce 'mismatch' has shape (4,), rank 0 has (3,)"
            )
            assert again == [tf_job.size] * 2


def test_a_failure_does_not_wait_for_other_calls(tf_job: Job) -> None:
    for kind, is_told, is_quick in tf_job.of("a_failure_ends_what_is_under_way"):
        assert (kind, is_told, is_quick) == ("FailedPreconditionError", True, True)


def test_a_failure_leaves_nothing_that_a_later_run_could_meet(tf_job: Job) -> None:
    for kind, left, sums in tf_job.of("a_failure_leaves_nothing_to_the_engine"):
        assert (kind, left) == ("FailedPreconditionError", 0)
        assert sums == [[float(i * tf_job.size)] * 2 for i in range(3)]


def test_results_that_were_not_promised_are_refused(tf_job: Job) -> None:
    for found in tf_job.of("results_that_were_not_promised"):
        assert [kind for kind, _ in found] == ["InternalError"] * 3
        assert "promised gives float32 (3,) instead of float32 (2,)" in found[0][1]
        assert "promised gives float64 (2,) instead of float32 (2,)" in found[1][1]
        assert "promised gives 0 results instead of 1" in found[2][1]


def test_threads_that_run_one_function_get_what_is_their_own(tf_job: Job) -> None:
    assert tf_job.of("runs_at_the_same_time") == [[]] * tf_job.size


def test_nothing_stays_behind_a_function_that_is_gone(tf_job: Job) -> None:
    for while_used, left, steps, under_way in tf_job.of("nothing_stays_behind"):
        assert while_used == 6  # two calls in each of three traces
        assert (left, steps, under_way) == (0, 0, 0)


def test_a_saved_function_runs_in_the_process_that_has_traced_it(tf_job: Job) -> None:
    for here, kind, is_told in tf_job.of("saved_functions"):
        assert here == [2.0, 2.0]
        assert (kind, is_told) == ("FailedPreconditionError", True)


def test_what_xla_compiles_is_refused_in_one_line(tf_job: Job) -> None:
    for refused, late, seen, elsewhere in tf_job.of("compiled_by_xla"):
        assert [kind for kind, _ in refused] == ["UsageError"] * 3
        for _, text in refused:
            assert COMPILED in text
        assert late == ["InvalidArgumentError"]  # by TensorFlow: it was traced before
        assert seen == [False, True, False]
        assert elsewhere == [2.0, 2.0]


def test_outside_of_graphs_it_says_so(tf_job: Job) -> None:
    for kind, lines in tf_job.of("without_a_graph"):
        assert kind == "UsageError"
        assert lines == ["local: a call of a graph outside of any; call it in a tf.function"]


def test_a_process_may_end_while_calls_run_in_the_background(tmp_path: Path) -> None:
    """TensorFlow's threads came into an interpreter that was ending: a crash, most of the time."""
    need("tensorflow")
    program = """
import tensorflow as tf
from blinkrun.tf import graph

class Done:
    def __init__(self, results):
        self.results = results
    def add_done_callback(self, call):
        call()
    def wait(self):
        return self.results

def same(x):
    return graph.call(lambda arrays: Done(list(arrays)), [x], [tf.TensorSpec((), x.dtype)], "x")[0]

numbers = tf.data.Dataset.range(10).repeat().map(same, num_parallel_calls=4).prefetch(100)
numbers = iter(numbers)
print([int(next(numbers)) for _ in range(3)])
"""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "BLINKRUN_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "[0, 1, 2]\n"
    assert done.returncode == 0, done.stderr
