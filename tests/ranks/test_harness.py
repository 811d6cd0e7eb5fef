import os
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")


@pytest.mark.parametrize("size", [1, 3])
def test_results_come_back_in_rank_order(run_ranks, size):
    results = run_ranks("harness_cases:rank_and", size=size, value=7)
    assert results == [[rank, size, 7, 7 * size] for rank in range(size)]


def test_a_rank_that_raises_fails_the_test_with_its_last_lines(run_ranks):
    with pytest.raises(pytest.fail.Exception, match="RuntimeError: the case went wrong") as caught:
        run_ranks("harness_cases:one_raises", size=2)
    assert "without a result: [0, 1]" in str(caught.value)


def test_a_deadline_ends_the_whole_job(run_ranks, tmp_path):
    with pytest.raises(pytest.fail.Exception, match=r"did not end within 4.0 s") as caught:
        run_ranks("harness_cases:one_hangs", size=2, timeout_s=4.0, seconds=600)
    assert "rank 1 is here" in str(caught.value)
    assert "one_hangs" in str(caught.value)  # the stack of each rank
    pids = [int(path.read_text()) for path in tmp_path.glob("*/*.pid")]
    assert len(pids) == 2
    left = [pid for pid in pids if os.path.exists(f"/proc/{pid}") and not _is_zombie(pid)]
    assert left == []


def test_the_environment_reaches_the_ranks(run_ranks):
    env = {"BLINKRUN_TEST_WORD": "seen"}
    assert run_ranks("harness_cases:environ", size=2, env=env, name="BLINKRUN_TEST_WORD") == [
        "seen",
        "seen",
    ]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
