"""Arguments, order of calls and what scripts look at of a DistributedOptimizer."""

import pytest
from support.harness import RankRunner

pytest.importorskip("torch", reason="needs torch")


def test_arguments_are_those_of_horovod_in_its_order(job):
    for lines in job.of("horovod_arguments"):
        assert lines["heard"] == ["DeprecationWarning"]
        assert lines["buckets"] == 2
        for op in ("min", "product"):
            assert "gradients are reduced by Average, Sum or Adasum" in lines[op]
        assert "gradient_predivide_factor goes with op=Average only" in lines["predivide_sum"]
        assert "gradient_predivide_factor is 0.0, need above 0" in lines["predivide_zero"]
        assert "groups is 0; give a number above 0" in lines["no_groups"]
        assert "a list of lists of parameters" in lines["flat_groups"]
        assert "groups consist of parameters, got int" in lines["numbers"]
        assert "groups have a parameter of shape (1,) twice" in lines["twice"]
        assert "check_every is -1, need a whole number of at least 0" in lines["check_every"]
        assert "not registered" in lines["process_set"]
        assert not any("no error" in str(line) for line in lines.values())


def test_arguments_that_differ_are_named_on_every_rank(job):
    for rank, (lines, after) in enumerate(job.of("arguments_that_differ")):
        assert after == "no error"
        if job.size == 1:
            continue
        last = job.size - 1
        if rank == last:
            assert (
                f"rank 0: DistributedOptimizer has op=Average, rank {last} has op=Sum" in lines[0]
            )
        else:
            assert f"rank {last}: DistributedOptimizer has op=Sum, rank {rank} has" in lines[0]
        assert "groups=[[0, 1" in lines[1]


def test_errors_are_of_the_classes_that_horovod_scripts_catch(job):
    assert job.of("errors_that_horovod_scripts_catch") == [[True] * 3] * job.size


def test_gradients_that_do_not_fit_name_their_parameter(job):
    for away, line in job.of("gradients_that_do_not_fit"):
        assert "parameter '0.weight' has a gradient of torch.float32 on meta" in away
        if job.size > 1:
            assert "parameter '4.bias' has a gradient of shape (2, 3)" in line


def test_copies_and_pickles_are_plain_optimizers_with_the_state(job):
    for rank, (copied, loaded, steps) in enumerate(job.of("copies_are_plain")):
        assert (copied, loaded) == ("Adam", "Adam")
        assert steps == [1, 1 + (rank == 0), 1]


def test_what_horovod_scripts_look_at_is_there(job):
    names = [f"{layer}.{what}" for layer in (0, 2, 4) for what in ("weight", "bias")]
    for found in job.of("what_scripts_look_at"):
        assert found == {
            "names": names,
            "trained": sorted(set(names) - {"0.bias"}),
            "passes": 3,
            "op": 1,
            "factor": 1.0,
            "sparse": True,
            "global": True,
        }


def test_gradients_that_were_taken_elsewhere_are_reduced_all_the_same(job):
    assert job.of("saved_between_steps") == [True] * job.size


def test_nan_in_a_bucket_is_traced_to_parameter_and_rank(job):
    answers = job.of("nan_in_a_bucket")
    assert len({tuple(bits) for _, bits in answers}) == 1
    for lines, _ in answers:
        assert [lines[step] for step in (1, 3, 5, 7)] == ["no error"] * 4
        for line in (lines[step] for step in (0, 2, 4, 6) if job.size > 1):
            assert "NonFiniteError" in line
            assert "'2.bias'" in line or "new.2.bias" in line
            assert f"rank {job.size - 1}" in line


def test_the_environment_of_rank_0_says_how_often_parameters_are_checked(job):
    assert job.of("checks_by_the_environment") == [[3, 0]] * job.size


def test_an_optimizer_goes_on_when_the_job_is_joined_again(tmp_path, plan_cache):
    pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")
    runner = RankRunner(tmp_path, environ={"BLINKRUN_CACHE_DIR": str(plan_cache)})
    for lines, again, at_once in runner("torch_optimizer_usage_cases:joined_again", 3):
        assert all("needs blinkrun.init() first" in line for line in lines)
        assert again == at_once
