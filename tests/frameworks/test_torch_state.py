import pytest


@pytest.mark.parametrize(
    "case",
    [
        "parameters_of_every_dtype",
        "parameters_in_pieces",
        "parameters_without_names",
        "parameters_in_another_order",
        "parameters_of_some_ranks",
    ],
)
def test_parameters_of_every_dtype_and_layout_arrive_in_place(job, case):
    assert job.of(case) == [[]] * job.size


def test_parameters_come_from_a_generator_of_names_too(job):
    for unlike, still_trained in job.of("parameters_from_a_generator"):
        assert set(unlike) <= {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
        assert still_trained


def test_models_that_differ_are_refused_by_rank_and_parameter(job):
    answers = job.of("parameters_that_differ")
    if job.size == 1:
        assert set(answers[0].values()) == {"no error"}
        return
    last = job.size - 1
    for lines in answers[:-1]:
        assert f"rank {last}: parameter 'b' is float32 (3,)" in lines["shape"]
        assert f"rank {last} has parameter 'c'" in lines["names"]
        assert f"only rank {last} has 'extra'" in lines["longer"]
    assert "rank 0: parameter 'b' is float32 (2,)" in answers[-1]["shape"]
    assert all(line.startswith("MismatchError") for lines in answers for line in lines.values())


def test_values_that_cannot_be_sent_are_refused(job):
    for lines in job.of("parameters_that_cannot_be_sent"):
        assert "'s' is sparse" in lines["sparse"]
        assert "'weight' has no shape yet" in lines["lazy"]
        assert "'n' is no tensor but int" in lines["plain"]
        assert "an item of type float" in lines["no_pairs"]
        assert "named_parameters() or parameters(), got NoneType" in lines["nothing"]


def test_optimizer_state_of_one_rank_reaches_all(job):
    assert job.of("optimizer_state_of_the_root_only") == [[]] * job.size


def test_optimizer_state_of_every_optimizer_reaches_all(job):
    assert job.of("optimizer_state_of_every_kind") == [[]] * job.size


def test_a_fresh_optimizer_is_left_with_gradients_of_zeros(job):
    assert job.of("gradients_of_a_fresh_optimizer") == [[True, [0.0] * 3]] * job.size


def test_a_root_without_state_takes_it_from_the_others(job):
    assert job.of("optimizer_state_of_others_only") == [[0, 0.01]] * job.size


def test_hyperparameters_of_every_group_arrive_and_parameters_stay(job):
    want = [True, [[0.25, [0.5, 0.5]], [0.5, [0.5, 0.5]]]]
    assert job.of("optimizer_state_in_groups") == [want] * job.size


def test_objects_are_broadcast_and_gathered(job):
    assert job.of("objects") == [[job.size - 1, list(range(job.size))]] * job.size
