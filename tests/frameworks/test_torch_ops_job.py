"""One job of three ranks that leaves and comes back in every way that `init` knows."""

import pytest
from support.harness import RankRunner

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")


@pytest.fixture(scope="module")
def seen(tmp_path_factory, plan_cache):
    runner = RankRunner(
        tmp_path_factory.mktemp("job"), environ={"BLINKRUN_CACHE_DIR": str(plan_cache)}
    )
    return runner("torch_job_cases:run", 3, timeout_s=60)


def test_sets_given_to_init_are_numbered_in_their_order_until_shutdown(seen):
    for rank, result in enumerate(seen):
        sums = [4, 2, 4][rank]
        assert result["sets_from_the_start"] == [
            [None, None, [0, 2]],
            *(1, 2, 2, sums, 6, 3),
            *(None, [0, 2], False),
            "NotInitializedError: this call needs blinkrun.init() first (or comes after "
            "blinkrun.shutdown())",
        ]


def test_a_duplicate_set_is_refused_alone_and_a_wrong_one_with_its_job(seen):
    for rank, result in enumerate(seen):
        lines = result["sets_that_are_refused"]
        assert lines.pop("afterwards") == ([3] if rank < 2 else [])
        stays = {name: lines[name].pop() for name in lines}
        assert stays == dict.fromkeys(("twice", "everyone"), True) | dict.fromkeys(
            ("foreign", "nobody", "word"), False
        )
        lines = {name: line for name, (line,) in lines.items()}
        assert all(line.startswith("ProcessSetError: process_sets ") for line in lines.values())
        assert "entry 1 with ranks [0, 1] is a duplicate" in lines["twice"]
        assert "entry 1 with ranks [0, 1, 2] is a duplicate" in lines["everyone"]
        assert "entry 0 has ranks [0, 3]" in lines["foreign"]
        assert "entry 0 has ranks []" in lines["nobody"]
        assert "is 'static'" in lines["word"]


def test_communicators_that_divide_the_job_are_a_set_each(seen):
    even, odd = [1, [0, 2], 4], [2, [1], 2]
    assert [result["sets_of_communicators"] for result in seen] == [
        [*even, 0, 3],
        [*odd, 0, 3],
        [*even, 1, 3],
    ]


def test_a_set_is_a_duplicate_to_the_ranks_that_gave_it_twice(seen):
    line = (
        "ProcessSetError: process_sets entry 1 with ranks [0, 2] is a duplicate of an earlier one"
        " or of the set of all ranks; the job goes on with the others"
    )
    assert [result["sets_that_some_ranks_give_twice"] for result in seen] == [
        [line, 1, None, 1, True, 4, True],
        ["", 2, 1, 1, True, 2, True],
        [line, 1, None, 1, True, 4, True],
    ]


def test_a_part_of_the_ranks_is_a_job_of_its_own(seen):
    places = [result["parts_of_the_job"] for result in seen]
    assert [place[1:] for place in places] == [[0, 2, 3], [0, 1, 1], [1, 2, 3]]
    assert "rank 0 is none of the ranks [1, 2]" in places[0][0]
    assert "ranks [3] do not exist" in places[1][0]


def test_a_communicator_says_who_has_which_rank(seen):
    assert [result["communicators_as_jobs"] for result in seen] == [[2, 3, 2], [1, 3, 2], [0, 3, 2]]


def test_rank_0_writes_the_timeline(seen):
    assert [result["timelines"] for result in seen] == [[True, True], [True, False], [True, False]]


def test_a_job_can_be_left_and_joined_again_and_ends_without_shutdown(seen):
    assert [result["again_and_again"] for result in seen] == [[6] * 4] * 3
