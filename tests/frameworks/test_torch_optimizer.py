import pytest

CLOSE = 2e-5  # float32 sums in another order, magnified where a step divides by small numbers


def check_same(reports, close=CLOSE):
    """All ranks have bitwise the same parameters, those of one process on the joined batch."""
    assert max(report["distance"] for report in reports) <= close
    assert len({report["bits"] for report in reports}) == 1


@pytest.mark.parametrize(
    "case",
    [
        "trains_like_one_process",
        "trains_like_one_process_in_small_buckets_with_overlap",
        "trains_like_one_process_without_copying_gradients",
        "zero_grad_keeps_or_drops",
        "accumulation",
        "clipping_without_a_call",
        "schedulers",
    ],
)
def test_training_equals_one_process_in_each_variant(job, case):
    for reports in zip(*job.of(case), strict=True):
        check_same(reports)


@pytest.mark.parametrize(
    "case",
    [
        "clipping_with_skip_synchronize",
        "accumulation_in_one_pass_only",
        "accumulation_begun_again",
        "several_groups_and_a_late_one",
        "sum_of_losses",
        "grad_scaler_with_clipping",
        "closures_of_sgd",
        "state_dict_and_copies",
        "collectives_between_backward_and_step",
    ],
)
def test_training_equals_one_process(job, case):
    check_same(job.of(case))


def test_a_rerun_gives_the_same_bits_with_and_without_overlap(job):
    assert len({bits for rank in job.of("trains_again_to_the_same_bits") for bits in rank}) == 1


def test_gradients_keep_the_layout_of_their_parameters(job):
    reports = job.of("convolutions_channels_last")
    check_same(reports)
    assert all(report["same_strides"] for report in reports)


def test_sixteen_bit_gradients_are_reduced_in_their_own_type(job):
    reports = job.of("sixteen_bit_gradients")
    for dtype, far in (("bfloat16", 2e-2), ("float16", 2e-3), ("float64", 1e-14)):
        assert all(report[dtype][0] for report in reports)
        assert max(report[dtype][1] for report in reports) < far
        assert len({report[dtype][2] for report in reports}) == 1


def test_step_after_synchronize_warns_and_does_not_reduce_again(job):
    reports = job.of("step_after_synchronize")
    check_same(reports)
    for report in reports:
        (line,) = report["heard"]
        assert "optimizer.step() called without optimizer.skip_synchronize()" in line


def test_gradients_are_views_of_one_arena_that_stay_where_they_are(job):
    for storages, stays, places in job.of("gradients_are_views_of_buckets"):
        assert places == 6
        if job.size > 1:
            assert (storages, stays) == (1, True)


def test_buckets_follow_the_order_in_which_rank_0_had_its_gradients(job):
    reports = job.of("order_is_learned")
    check_same(reports)
    want = [1, 3, 0, 2] if job.size > 1 else [3, 2, 1, 0]  # alone, nothing is bucketed
    assert [report["layers"] for report in reports] == [want] * job.size


def test_parameters_without_a_gradient_count_as_zero_or_stay_none(job):
    for reports in zip(*job.of("parameters_without_gradients"), strict=True):
        check_same(reports)
        used = 3 if job.size > 1 else 2  # layer 2 is used by all ranks but rank 0
        want = [layer >= used for layer in range(4) for _ in "wb"]
        assert all(report["none"] == want for report in reports)
        assert all(report["frozen"] for report in reports)


def test_a_parameter_has_a_gradient_in_the_steps_in_which_any_rank_has_one(job):
    answers = job.of("parameters_that_come_and_go")
    assert [seen for seen, _ in answers] == [[False, True, False, True, True]] * job.size
    assert len({bits for _, bits in answers}) == 1


def test_a_rank_that_had_no_backward_steps_with_the_others(job):
    answers = job.of("ranks_without_backward")
    assert len({bits for bits, _ in answers}) == 1
    assert all(trained for _, trained in answers)


def test_an_overflow_on_one_rank_stops_the_step_of_all(job):
    for case in ("grad_scaler", "grad_scaler_with_clipping"):
        reports = job.of(case)
        check_same(reports)
        assert [report["scales"] for report in reports] == [[8.0, 8.0, 4.0, 4.0, 4.0]] * job.size


def test_a_step_that_the_scaler_skipped_is_over_on_all_ranks(job):
    answers = job.of("grad_scaler_after_a_skipped_step")
    assert len({bits for bits, _ in answers}) == 1
    assert all(trained for _, trained in answers)


def test_lbfgs_takes_the_same_way_on_all_ranks(job):
    reports = job.of("closures_of_lbfgs")
    check_same(reports, close=1e-3)  # a line search magnifies rounding
    assert len({report["calls"] for report in reports}) == 1
    assert reports[0]["calls"] > 3
    for report in reports:
        for want, got in report["losses"]:
            assert got == pytest.approx(want, rel=1e-3)


def test_a_closure_returns_the_loss_of_all_ranks(job):
    for report in job.of("closures_of_sgd"):
        want, got = report["loss"]
        assert got == pytest.approx(want, rel=1e-6)


def test_it_stays_the_optimizer_that_it_was(job):
    for report in job.of("state_dict_and_copies"):
        assert report["is_adam"]
        assert report["keys"] == ["param_groups", "state"]
        assert report["name"] == "DistributedAdam"


def test_step_hooks_run_once_a_step_and_see_global_gradients(job):
    answers = job.of("hooks_of_the_optimizer")
    assert [len(seen) for seen in answers] == [3] * job.size
    assert all(seen == answers[0] for seen in answers)


def test_parameters_can_be_wrapped_again_when_the_optimizer_is_gone(job):
    assert len(set(job.of("thrown_away_optimizer"))) == 1


def test_schedulers_work_made_before_or_after(job):
    for reports in job.of("schedulers"):
        assert [report["lr"] for report in reports] == [0.1 / 16] * 2
