"""Gradients of all kinds: N ranks train as one process on the joined batch."""

import pytest

CLOSE = 2e-5


def check_same(reports, close=CLOSE):
    """All ranks have bitwise the same parameters, those of one process on the joined batch."""
    assert max(report["distance"] for report in reports) <= close
    assert len({report["bits"] for report in reports}) == 1


@pytest.mark.parametrize(
    "case",
    [
        "sparse_gradients",
        "sparse_gradients_of_some_ranks",
        "groups",
        "predivided_gradients",
        "gradients_turned_off_and_on",
        "unfrozen_later",
        "ranks_that_join",
        "grad_scaler_over_two_passes",
    ],
)
def test_training_equals_one_process_in_each_variant(job, case):
    for reports in zip(*job.of(case), strict=True):
        check_same(reports)


@pytest.mark.parametrize(
    "case",
    [
        "no_sync",
        "parameters_that_change_their_dtype",
        "exceptions_in_hooks",
        "clipping_while_accumulating",
    ],
)
def test_training_equals_one_process(job, case):
    check_same(job.of(case))


def test_every_optimizer_of_torch_steps_as_one_process_does(job):
    answers = job.of("every_optimizer")
    assert {"Adafactor", "Adam", "AdamW", "Muon", "NAdam", "Rprop", "SGD"} <= set(answers[0])
    for name in answers[0]:
        # Muon computes in bfloat16, whatever it is given
        check_same([answer[name] for answer in answers], 2e-3 if name == "Muon" else 1e-12)


def test_sparse_gradients_stay_sparse(job):
    for reports in job.of("sparse_gradients"):
        for report in reports:
            assert report["layouts"] == [["sparse_coo", "sparse_coo"]] * 5
    alone = job.size == 1
    for reports in job.of("sparse_gradients_of_some_ranks"):
        for report in reports:
            second = [layouts[1] for layouts in report["layouts"]]
            others = "none" if alone else "sparse_coo"
            assert second == ["none", "sparse_coo", "none", others, "sparse_coo"]


def test_compressed_gradients_travel_narrow_and_arrive_wide(job):
    answers = job.of("compressed_gradients")
    for name in answers[0][0]:
        check_same([found[name] for found, _, _ in answers], CLOSE if "none" in name else 2e-2)
    if job.size > 1:
        assert (
            answers[0][0]["fp16, overlap off"]["bits"] != answers[0][0]["none, overlap off"]["bits"]
        )
    for _, dtypes, narrow in answers:
        assert dtypes == ["torch.float32"]
        assert narrow


def test_a_compressor_of_ones_own_is_asked_in_both_directions(job):
    answers = job.of("gradients_through_a_compressor_of_ones_own")
    for reports in zip(*(trained for trained, _ in answers), strict=True):
        check_same(reports, 2e-3)
    for _, line in answers:
        assert "changes the number of elements of parameter '0.weight'" in line


def test_a_group_is_one_bucket(job):
    for buckets in job.of("groups_complete_together"):
        assert buckets == ([[0, 5], [1], [2], [3], [4]])


def test_a_step_in_no_sync_is_refused(job):
    for report in job.of("no_sync"):
        assert all("step() in no_sync()" in line for line in report["refusals"])


def test_parameters_that_became_float64_stay_so(job):
    for report in job.of("parameters_that_change_their_dtype"):
        assert report["dtypes"] == ["torch.float64"]


def test_join_returns_the_last_rank(job):
    for reports in job.of("ranks_that_join"):
        for report in reports:
            # all end the first and the last epoch by their rank; the second is the last rank's own
            assert report["lasts"] == [job.size - 1] * 3


def test_a_process_set_trains_by_itself(job):
    answers = job.of("process_sets")
    if job.size == 1:
        assert answers == [None]  # there are no sets of some ranks
        return
    for which in range(len(answers[0])):
        assert max(answer[which]["distance"] for answer in answers) <= CLOSE
        members = {answers[rank][which]["bits"] for rank in range(which, job.size, 2)}
        assert len(members) == 1


def test_parameters_that_differ_are_found_by_name_and_rank(job):
    for lines in job.of("check_of_parameters"):
        assert [lines[step] for step in (0, 2, 3)] == ["no error"] * 3
        if job.size > 1:
            first = ", ".join(map(str, range(job.size - 1)))
            ranks = f"rank{'s'[: job.size > 2]} {first}, another on rank {job.size - 1}"
            assert f"parameter '2.bias' has one value on {ranks} after step 2" in lines[1]


def test_passes_may_change_between_steps(job):
    reports = job.of("passes_that_change")
    check_same(reports)
    for report in reports:
        assert report["passes"] == 2
        assert "set_backward_passes_per_step() between backward() and step()" in report["line"]
