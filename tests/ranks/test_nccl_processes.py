"""blinkrun.nccl between processes that share nothing but a unique id."""

import multiprocessing
import os
import queue
import subprocess
import sys
import time

import pytest
from support.places import TESTS

from blinkrun import nccl

sys.path.insert(0, str(TESTS / "ranks" / "cases"))
import nccl_cases

DEADLINE_S = 60


@pytest.fixture(autouse=True)
def short_waits(monkeypatch, tmp_path):
    monkeypatch.setenv("BLINKRUN_TIMEOUT_S", "15")
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{TESTS / 'ranks' / 'cases'}")


def run(case, size, *, how="spawn", silent=()):
    """Return what each process answered; those in `silent` need not."""
    context = multiprocessing.get_context(how)
    answers = context.Queue()
    unique_id = nccl.get_unique_id()
    processes = [
        context.Process(target=nccl_cases.main, args=(case, unique_id, rank, size, answers))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    said = {}
    deadline = time.monotonic() + DEADLINE_S
    try:
        while len(said) < size - len(silent):
            try:
                rank, answer = answers.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                pytest.fail(f"{case}: only ranks {sorted(said)} of {size} answered")
            said[rank] = answer
    finally:
        for process in processes:
            process.join(5 if len(said) == size - len(silent) else 0.1)
            if process.is_alive():
                process.kill()
                process.join()
    return said


@pytest.mark.parametrize(("size", "how"), [(1, "fork"), (2, "fork"), (3, "spawn")])
def test_ranks_find_each_other_by_the_id_alone(size, how):
    """Also processes forked from one that has imported everything, as multiprocessing does."""
    answers = run("everything", size, how=how)
    assert {rank: wrong for rank, (wrong, _) in answers.items()} == dict.fromkeys(range(size), 0)
    if how == "spawn":  # a fork has what its parent has imported
        assert not any(has_mpi for _, has_mpi in answers.values())


def test_a_rank_that_is_killed_is_told_to_the_others():
    said = run("one_is_killed", 3, silent=[1])
    assert sorted(said) == [0, 2]
    for without_a_call, in_a_call in said.values():
        assert without_a_call == [6, "rank 1 died"]
        assert in_a_call[0] == 6
        assert "rank 1 has died" in in_a_call[1]


def test_a_sender_that_dies_leaves_no_half_message():
    (status, detail) = run("one_is_killed_in_a_message", 2, silent=[1])[0]
    assert status == 6
    assert "rank 1 has died while rank 0 waits for it in recv of 8388608 bytes" in detail


def test_ranks_that_count_differently_are_told():
    for status, detail in run("one_disagrees", 2).values():
        assert status == 2
        assert "rank 1 says that there are 3 ranks, rank 0 says 2" in detail


def test_the_example_of_the_page_runs(tmp_path):
    page = (TESTS.parent / "docs" / "nccl.md").read_text(encoding="utf-8")
    script = tmp_path / "example.py"
    script.write_text(page.split("```python\n")[1].split("```")[0])
    done = subprocess.run(
        [sys.executable, str(script)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for rank in range(3):  # not by lines: processes that print unbuffered mix their line ends
        assert done.stdout.count(f"rank {rank} has 6.0") == 1
