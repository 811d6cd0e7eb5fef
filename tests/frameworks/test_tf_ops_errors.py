import subprocess
import sys

import pytest
from support.needs import need

DIFFERENCES = {
    "shape": "allreduce 't' has shape ({rows}, 2), rank 0 has (2, 2)",
    "dimensions": "allreduce 't' has shape (4,), rank 0 has (2, 2)",
    "dtype": "allreduce 't' has dtype int32, rank 0 has float32",
    "wire": "allreduce 't' has device cpu (uint16), rank 0 has cpu (int16)",
    "op": "allreduce 't' has op max, rank 0 has sum",
    "factor": "allreduce 't' has scale factors (2.0, 1.0), rank 0 has (1.0, 1.0)",
    "kind": "allgather 't', rank 0 calls allreduce",
    "group": "allreduce 't' has 2 tensors, rank 0 has 1",
    "root": "broadcast 't' has root 1, rank 0 has 0",
    "rows": "allgather 't' has shape (2, 3), rank 0 has (2, 2)",
    "columns": "alltoall 't' has shape ({size}, 3), rank 0 has ({size}, 2)",
    "scattered": "reducescatter 't' has shape (6, 2), rank 0 has (6, 1)",
}
REFUSED = {
    "op": "op is 'sum'; choose Average, Sum, Min, Max, Product or Adasum",
    "scatter op": "op is 17; choose",
    "root": "root_rank is {size}, ranks are 0 to {last}",
    "negative": "root_rank is -1",
    "rows": "rows cannot be divided among {size} ranks; give splits",
    "few": "{more} splits for {size} ranks; give one for each",
    "sum": "add up to {more}, the tensor has {size} rows",
    "below": "none may be negative",
    "fractions": "splits is a 1-dimensional tensor of float32; need whole numbers in one dimension",
    "table": "splits is a 2-dimensional tensor of int32",
    "words": "need a list of whole numbers",
    "scalar": "alltoall: a scalar has no rows to send",
    "scalar rows": "reducescatter: a scalar has no rows to scatter",
    "bytes": "name is b'x', need a text",
    "not registered": "the process set of ranks [0] is not registered",
    "unknown": "process set 77",
    "number": "process_set takes a ProcessSet, got 3",
    "one tensor": "takes a list of tensors, got one tensor",
    "no variable": "broadcast: EagerTensor is no variable",
    "both": "op and average are both given",
    "mixed": "uint64 is averaged in a group of its own only",
    "bool": "bool has no average; use op=Sum (or), Min (and), or convert it",
    "bool factor": "bool takes no factors",
    "complex": "complex64 has Sum and Average only",
    "whole adasum": "Adasum needs floating-point numbers, got int32",
}


def filled(text, size):
    return text.format(size=size, last=size - 1, more=size + 1, rows=3)


def test_ranks_that_disagree_all_get_an_error_that_names_tensor_and_ranks(tf_job):
    for lines in tf_job.of("mismatches"):
        assert lines["works"] == tf_job.size
        for what, text in DIFFERENCES.items():
            if tf_job.size == 1:
                assert lines[what] == "no error"
                continue
            assert lines[what].startswith("FailedPreconditionError | MismatchError | rank"), what
            assert filled(text, tf_job.size) in lines[what], what
            assert "tf_ops_errors_cases.py:" in lines[what], what


def test_ranks_that_disagree_in_a_graph_get_the_same_text_and_the_function_goes_on(tf_job):
    for lines in tf_job.of("mismatches_in_graphs"):
        assert lines["works"] == tf_job.size
        assert lines["then"] == [1.0, 1.0, 1.0]
        for what, text in DIFFERENCES.items():
            if tf_job.size > 1:
                assert lines[what].startswith("FailedPreconditionError | "), what
                assert filled(text, tf_job.size) in lines[what], what
                assert "tf_ops_errors_cases.py:" in lines[what], what
        if tf_job.size > 1:
            assert "allreduce 'again' has shape (4,), rank 0 has (3,)" in lines["first"]


def test_a_gradient_that_differs_is_named_after_its_call(tf_job):
    for lines in tf_job.of("gradients_that_differ"):
        assert lines["works"] == tf_job.size
        if tf_job.size > 1:
            assert lines["shape"].startswith("FailedPreconditionError | MismatchError | rank")
            assert (
                "allreduce 'weights.backward' has shape (3, 1), rank 0 has (2, 1)"
                in (lines["shape"])
            )


@pytest.mark.parametrize("case", ["arguments_refused", "arguments_refused_in_graphs"])
def test_arguments_that_make_no_sense_are_refused_by_the_rank_that_gives_them(tf_job, case):
    for lines in tf_job.of(case):
        assert lines["works"] == tf_job.size
        for what, text in REFUSED.items():
            if what == "rows" and tf_job.size == 1:
                continue  # any number of rows can be divided
            assert lines[what].startswith("InvalidArgumentError | "), (what, lines[what])
            assert filled(text, tf_job.size) in lines[what], (what, lines[what])
        assert lines["adasum"].startswith("NotImplementedError | NotSupportedError | ")


def test_what_only_a_run_of_a_graph_knows_is_refused_then(tf_job):
    for lines in tf_job.of("arguments_refused_in_graphs"):
        rows = tf_job.size
        assert f"make {2 * rows} rows, the tensor has {rows}" in lines["computed"]
        assert "a scalar has no rows to scatter" in lines["later scalar"]
        assert lines["computed"].startswith("InvalidArgumentError | ")
        assert lines["later scalar"].startswith("InvalidArgumentError | ")


def test_tensors_that_are_no_numbers_are_refused_by_name(tf_job):
    for lines in tf_job.of("tensors_refused"):
        assert lines.pop("works") == tf_job.size
        assert "string is no dtype of collectives" in lines["string"]
        assert "resource is no dtype of collectives" in lines["resource"]
        assert "got RaggedTensor; give tensor.to_tensor()" in lines["ragged"]
        assert "got SparseTensor; give tf.sparse.to_dense(tensor)" in lines["sparse"]
        assert "qint8 is no dtype of collectives" in lines["quantized"]
        assert "takes a tensor, got NoneType" in lines["nothing"]
        assert "takes a tensor, got object" in lines["object"]
        assert "belongs to a graph, and this call to none" in lines["of a graph"]
        assert "got IndexedSlices; give tf.convert_to_tensor(tensor)" in lines["slices"]
        assert "string is no dtype of collectives" in lines["gathered"]
        assert "string is no dtype of collectives" in lines["in a graph"]
        for line in lines.values():
            assert line.startswith("InvalidArgumentError | InvalidBufferError | ")


def test_indexed_slices_have_sums_and_averages_only(tf_job):
    for lines in tf_job.of("slices_refused"):
        assert lines.pop("works") == tf_job.size
        assert "sparse_as_dense=True" in lines["adasum"]
        assert "take no prescale_factor" in lines["factor"]
        for line in lines.values():
            assert line.startswith("NotImplementedError | NotSupportedError | ")
            assert "IndexedSlices" in line


def test_errors_are_whole_after_pickling_and_both_kinds(tf_job):
    assert tf_job.of("errors_travel") == [[]] * tf_job.size


def test_average_is_deprecated_at_the_line_that_gives_it(tf_job):
    assert tf_job.of("average_is_deprecated") == [[True, 2, True]] * tf_job.size


def test_messages_name_the_line_of_the_user(tf_job):
    assert tf_job.of("place_of_a_call") == [[]] * tf_job.size


BEFORE_INIT = """
import tensorflow as tf, blinkrun, blinkrun.tf as blink
w = tf.Variable(1.0)
with tf.GradientTape() as tape:
    loss = w * w
for call in (lambda: blink.allreduce(1.0), lambda: blink.broadcast(1.0, 0),
             lambda: blink.DistributedGradientTape(tape).gradient(loss, w),
             lambda: blink.grouped_allgather([1.0]), lambda: blink.alltoall([1.0]),
             lambda: blink.reducescatter([1.0]), tf.function(lambda: blink.allreduce(1.0))):
    try:
        call()
    except ValueError as err:
        assert isinstance(err, (blinkrun.errors.NotInitializedError)), repr(err)
        assert isinstance(err, (tf.errors.FailedPreconditionError)), repr(err)
        assert "needs blinkrun.init() first" in str(err), str(err)
    else:
        raise SystemExit("no error")
print("done")
"""


def test_collectives_and_tapes_before_init_say_so():
    need("tensorflow")
    done = subprocess.run(
        [sys.executable, "-c", BEFORE_INIT],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "done\n", done.stderr[-2000:]
