from blinkrun.errors import NotInitializedError


def test_before_init_every_call_says_so(job):
    for lines in job.of("before_init"):
        assert lines.pop("initialized") is False
        assert all(line.startswith(NotInitializedError.__name__) for line in lines.values())
        assert all("needs blinkrun.init() first" in line for line in lines.values())


def test_names_are_checked(job):
    for lines in job.of("names"):
        assert "named_parameters has the name 'w' twice" in lines["twice"]
        assert "no name for parameter 0 of group 0, shape (16, 6)" in lines["missing"]
        assert "takes pairs, as model.named_parameters()" in lines["no_pairs"]
        assert lines["none"] == "no error"


def test_arguments_are_checked(job):
    for lines in job.of("arguments"):
        assert "gradients are reduced by Average, Sum or Adasum" in lines["op"]
        assert "backward_passes_per_step is 0, need a whole number" in lines["passes"]
        assert "bucket_bytes is 0" in lines["bucket_bytes"]
        assert "bucket_bytes is 1000000.0" in lines["float_bytes"]
        assert "overlap is 'maybe'; choose one of auto, on, off" in lines["overlap"]
        assert "wraps a torch optimizer" in lines["optimizer"]


def test_neither_an_optimizer_nor_its_parameters_are_wrapped_twice(job):
    for again, others in job.of("wrapped_twice"):
        assert "this optimizer is wrapped by DistributedOptimizer already" in again
        assert "'0.weight' belongs to another DistributedOptimizer already" in others


def test_parameters_that_cannot_be_reduced_are_named(job):
    for complex_line, meta_line in job.of("parameters_that_cannot_be_reduced"):
        assert "'group0.param0' is torch.complex64" in complex_line
        assert "'group0.param0' is torch.strided on meta" in meta_line


def test_one_backward_pass_too_many_is_refused_and_training_goes_on(job):
    for line in job.of("backward_too_often"):
        assert "parameter '4.bias': more than backward_passes_per_step=1 backward passes" in line


def test_zero_grad_while_gradients_are_reduced_is_refused(job):
    for line in job.of("zero_grad_too_early"):
        assert "zero_grad() between backward() and step()" in line


def test_a_step_on_gradients_of_one_rank_is_refused(job):
    for line in job.of("skip_without_synchronize"):
        assert "step() in skip_synchronize() with new gradients" in line


def test_models_that_differ_are_refused_by_rank_and_parameter(job):
    answers = job.of("models_that_differ")
    if job.size == 1:
        assert set(answers[0].values()) == {"no error"}
        return
    for lines in answers[:-1]:
        assert f"rank {job.size - 1}: parameter 'weight' is float32 (2, 3)" in lines["shape"]
        assert f"only rank {job.size - 1} has '1.weight'" in lines["longer"]


def test_a_param_group_that_is_refused_leaves_the_optimizer_as_it_was(job):
    for line, num_groups in job.of("add_param_group_that_fails"):
        assert "no name for parameter 0 of group 1" in line
        assert num_groups == 1


def test_the_environment_sets_what_arguments_leave_out(job):
    for num_buckets, line in job.of("environment"):
        assert num_buckets == 4
        assert "BLINKRUN_OVERLAP=sometimes: choose one of auto, on, off" in line


def test_rank_0_says_what_was_chosen_and_why(job):
    first, *others = job.of("what_was_chosen")
    assert first == ("blinkrun: [rank 0] gradients: 0.0 MB in 1 bucket, overlap off (asked for)\n")
    assert set(others) <= {""}
