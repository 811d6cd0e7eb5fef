import pytest


@pytest.mark.parametrize(
    "case",
    [
        "any_order",
        "several_threads",
        "repeated_calls",
        "repeated_calls_that_differ_in_one_thing",
        "repeated_calls_keep_no_memory",
        "groups_in_one_call",
        "alltoall_in_equal_parts",
        "alltoall_in_unequal_parts",
        "reducescatter_rows",
        "adaptive_sums",
        "sparse_sums",
        "handles",
        "dropped_handles_keep_their_tensors",
        "names_under_way",
        "the_old_way_to_ask_for_averages",
    ],
)
def test_named_calls_give_what_they_promise(job, case):
    assert job.of(case) == [[]] * job.size


@pytest.mark.parametrize(
    "case",
    [
        "sets_of_ranks",
        "sets_at_the_same_time",
        "ranks_without_data",
        "nothing_but_sums_while_a_rank_has_joined",
        "objects_of_some_ranks",
    ],
)
def test_some_ranks_work_without_the_others(job, case):
    assert job.of(case) == [[]] * job.size


def test_rows_that_do_not_fit_are_refused_before_anything_is_sent(job):
    for lines in job.of("alltoall_refused"):
        rows, ranks = 2 * job.size + 1, job.size
        assert f"add up to {2 * ranks}, the tensor has {rows} rows" in lines["sum"]
        assert f"{ranks + 1} splits for {ranks} ranks" in lines["length"]
        assert "splits" in lines["negative"]
        assert "tensor of torch.float32" in lines["floats"]
        assert "need a list of whole numbers" in lines["words"]
        assert "cannot be divided" in lines["divided"]
        assert "a scalar has no rows to send" in lines["scalar"]


def test_sparse_tensors_that_do_not_fit_are_refused(job):
    for lines in job.of("sparse_refused"):
        assert "takes a sparse COO tensor, got torch.strided" in lines["dense"]
        assert "sparse tensors are reduced by Average or Sum" in lines["op"]
        if job.size > 1:
            assert lines["size"].startswith("MismatchError: sparse allreduce 'size'")
            assert "[(6, 2), (7, 2)]" in lines["size"]


def test_what_ranks_disagree_about_is_told_to_all_and_work_goes_on(job):
    words = {
        "shape": ("allreduce 'm.shape' has shape (17, 4), rank 0 has (17, 3)"),
        "dimensions": ("allreduce 'm.dim' has shape (2, 6), rank 0 has (12,)"),
        "dtype": ("has dtype float64, rank 0 has float32"),
        "op": ("allreduce 'm.op' has op max, rank 0 has sum"),
        "factor": ("allreduce 'm.f' has scale factors (2.0, 1.0), rank 0 has (1.0, 1.0)"),
        "root": (f"broadcast 'm.root' has root {job.size - 1}, rank 0 has 0"),
        "rows": ("allgather 'm.rows' has shape (2, 3), rank 0 has (2, 2)"),
        "group": ("allreduce 'm.group' has 3 tensors, rank 0 has 2"),
        "kind": ("allgather 'm.kind', rank 0 calls allreduce"),
        "scatter": (f"reducescatter 'm.rs' has shape ({job.size}, 3), rank 0 has"),
    }
    for lines in job.of("mismatches"):
        assert lines.pop("afterwards") == "works"
        if job.size == 1:
            assert set(lines.values()) == {"no error"}
            continue
        assert lines.keys() == words.keys()
        for name, line in lines.items():
            assert line.startswith(f"MismatchError: rank {job.size - 1}: "), line
            assert words[name] in line
            assert line.count("torch_calls_cases.py:") == 2  # where each of the two called


def test_the_line_of_the_caller_is_the_one_that_called_last(job):
    if job.size == 1:
        return
    for first, second in job.of("the_caller_is_named"):
        lines = [int(text.rpartition(".py:")[2].rstrip(")")) for text in (first, second)]
        assert lines[1] == lines[0] + 1


def test_names_and_groups_that_make_no_sense_are_refused(job):
    for lines in job.of("names_and_groups_refused"):
        assert "name is 3, need a text" in lines["name"]
        assert "grouped allreduce has no tensors" in lines["none"]
        assert "takes a list of tensors, got one tensor" in lines["tensor"]
        assert "takes a torch tensor, got float" in lines["item"]


def test_process_sets_that_make_no_sense_are_refused(job):
    for answers in job.of("sets_refused"):
        assert answers["global"] is False
        assert answers["unknown"] is False
        assert answers["removed"] is True
        assert answers["everyone"] == [list(range(job.size)), 0]
        for name in ("twice", "all", "foreign", "words", "number", "no set", "new"):
            assert answers[name].startswith("ProcessSetError"), answers[name]
        assert "already has exactly the ranks [0]" in answers["twice"]
        assert f"of ranks [{job.size}] cannot be made" in answers["foreign"]
        assert "is not registered (or no more)" in answers["new"]


def test_what_is_built_is_told_as_it_is(job):
    for answers in job.of("what_this_build_has"):
        assert answers["mpi"] == [True, job.size > 1 or answers["mpi"][1]]
        assert answers["others"] == [False, False, 0, False, False, False, False]
        assert answers["homogeneous"] is True
