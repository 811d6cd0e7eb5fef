"""What gives every rank what one has, in TensorFlow."""

import pytest


def test_variables_of_every_dtype_take_the_values_of_the_root(tf_job):
    want = [[], ["(1+0j)"], [f"({tf_job.size}+0j)"]]  # of no values, of bool, of all others
    for is_none, kept, values, inplace in tf_job.of("variables_of_all_dtypes"):
        assert is_none
        assert kept
        assert values == inplace
        assert values == (want if tf_job.size > 1 else want[:2])


def test_a_function_broadcasts_at_every_run(tf_job):
    for first, again in tf_job.of("variables_in_a_function"):
        assert [f"({tf_job.size}+0j)"] in first
        assert len(first) == (3 if tf_job.size > 1 else 2)
        assert again == [f"({tf_job.size + 1}+0j)"]


def test_a_keras_model_and_its_optimizer_become_those_of_rank_0(tf_job):
    for rank, (unchanged, alike) in enumerate(tf_job.of("variables_of_a_keras_model")):
        assert alike
        assert unchanged or rank


def test_graphs_of_tensorflow_1_broadcast_by_an_operation_or_a_hook(tf_job):
    for kind, found, hooked in tf_job.of("variables_in_a_session"):
        assert kind == "Operation"
        assert found == [[float(tf_job.size)] * 3] * 2
        assert hooked == [[1.0] * 3] * 2


def test_a_process_set_broadcasts_among_its_ranks(tf_job):
    want = [[2.0], [1.0], [2.0]] if tf_job.size == 3 else [[float(r)] for r in range(tf_job.size)]
    assert tf_job.of("variables_of_a_set") == want


def test_hundreds_of_variables_and_any_iterable_do(tf_job):
    assert all(tf_job.of("variables_that_are_many"))


def test_variables_that_differ_are_named_on_every_rank_and_nothing_changes(tf_job):
    for found, untouched, after in tf_job.of("variables_that_differ"):
        assert untouched
        assert after == [0.0, 0.0]
        if tf_job.size == 1:
            assert not any(names for names, _, _ in found)
            continue
        last = tf_job.size - 1
        for names, _, _ in found[:3]:
            assert {"MismatchError", "FailedPreconditionError"} <= set(names)
        must = "every rank must give the same variables in the same order"
        assert found[0][1] == (
            f"broadcast_variables: variable 1 'kernel:0' is float32 (4,) on rank {last}, "
            f"float32 (3,) on rank 0; {must}"
        )
        assert f"'scale:0' is int32 (1,) on rank {last}, float32 (1,) on rank 0" in found[1][1]
        assert f"rank {last} gives 2 variables, rank 0 1; {must}" in found[2][1]
        assert f"'kernel:0' is float32 (4,) on rank {last}" in found[3][2]


@pytest.mark.parametrize(
    ("place", "kind", "words"),
    [
        (0, "InvalidArgumentError", "item 0 is no variable but EagerTensor"),
        (1, "InvalidArgumentError", "variable 'text:0' is of string"),
        (2, "InvalidArgumentError", "takes a list of variables"),
        (3, "InvalidArgumentError", "root_rank is"),
        (4, "RuntimeError", "call broadcast_variables(model.variables, root_rank) instead"),
    ],
)
def test_what_cannot_be_broadcast_is_refused_in_one_line(tf_job, place, kind, words):
    for found in tf_job.of("variables_refused"):
        names, _, text = found[place]
        assert kind in names
        assert words in text
        assert "\n" not in text


def test_xla_is_told_what_to_set(tf_job):
    for found in tf_job.of("variables_refused"):
        for names, line, _ in found[5:] if tf_job.size > 1 else found[6:]:
            assert "UsageError" in names
            assert "jit_compile=False" in line


def test_all_variables_take_one_message(tf_job):
    want = 0 if tf_job.size == 1 else 1
    assert tf_job.of("variables_take_one_request") == [want] * tf_job.size


def test_tensors_that_share_memory_with_a_variable_stay_as_they_are(tf_job):
    root = float(tf_job.size - 1)
    for rank, ways in enumerate(tf_job.of("variables_keep_other_tensors")):
        for given, read, after, made in ways:
            assert given == read == [float(rank)] * 4
            assert after == [root] * 4
            assert made == [root + 1] * 4


def test_objects_come_from_one_rank_or_from_all(tf_job):
    last = tf_job.size - 1
    for answer in tf_job.of("objects_of_one_and_of_all"):
        assert answer == [last, last, last, last + 1, ["x" * r for r in range(tf_job.size)]]


def test_objects_need_no_session(tf_job):
    for answer in tf_job.of("objects_in_a_graph"):
        assert answer == [tf_job.size - 1, list(range(tf_job.size))]


def test_sizes_are_found_when_a_graph_runs(tf_job):
    size = tf_job.size
    for rank, answer in enumerate(tf_job.of("sizes_as_ops")):
        eager, dtypes, during, after, in_session, compiled, unknown = answer
        assert compiled == rank + size
        assert eager == after == in_session == [size, rank, size, rank, 1, -2]
        assert dtypes == ["int32"]
        assert during[-1] == (int(rank == 0) if size > 1 else -2)
        assert "1000" in unknown


def test_barrier_and_join_wait_when_a_function_runs(tf_job):
    for rank, answer in enumerate(tf_job.of("waiting_in_a_function")):
        total = tf_job.size * (tf_job.size + 1) / 2
        assert answer == [total, True, "int32", True, rank]


def test_rank_and_size_are_numbers_in_a_function(tf_job):
    for rank, answer in enumerate(tf_job.of("names_of_this_process_in_a_function")):
        assert answer == [rank, tf_job.size, rank, 1]


def test_compressors_narrow_wide_floats_and_nothing_else(tf_job):
    for found, sums, size in tf_job.of("compressors"):
        for case, kinds in found.items():
            compressor, _, dtype = case.partition(" ")
            if dtype == "slices":
                assert kinds is True
                continue
            narrow = {"fp16": "float16", "bf16": "bfloat16"}.get(compressor)
            is_narrowed = narrow and dtype.endswith(("float64", "float32", "float16"))
            assert kinds == [narrow if is_narrowed else dtype, dtype], case
        assert sums == [[size * (size + 1) / 2] * 4] * 3
