import pytest


@pytest.mark.parametrize(
    "case",
    [
        "static_shapes",
        "unknown_shapes",
        "names_in_graphs",
        "names_after_unlike_traces",
        "one_name_twice",
        "one_function_twice",
        "loops_and_branches",
        "results_that_nobody_uses",
        "many_runs",
        "orders_that_differ",
        "threads_with_names",
        "graphs_in_threads",
        "joined_ranks",
        "sessions",
    ],
)
def test_collectives_in_graphs_do_what_they_do_eagerly(tf_job, case):
    assert tf_job.of(case) == [[]] * tf_job.size
