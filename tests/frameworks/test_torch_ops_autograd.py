import pytest


@pytest.mark.parametrize(
    "case",
    [
        "allreduce_gradients",
        "least_and_greatest_have_true_gradients",
        "products_have_true_gradients",
        "allgather_gradients",
        "broadcast_gradients",
        "alltoall_gradients",
        "reducescatter_gradients",
        "grouped_gradients_one_after_another",
        "gradients_in_a_process_set",
        "second_derivatives",
        "gradients_in_another_order_on_every_rank",
    ],
)
def test_gradients_follow_their_rules(job, case):
    assert job.of(case) == [[]] * job.size


def test_a_result_is_in_the_graph_only_where_its_input_is(job):
    for answer in job.of("results_leave_the_graph_where_nothing_is_asked"):
        plain, quiet, asked, plain_in_group, asked_in_group, later = answer
        assert (asked, asked_in_group) == (True, True)
        assert (plain, quiet, plain_in_group, later) == (False,) * 4
