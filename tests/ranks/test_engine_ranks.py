"""The engine on real processes: orders, sets, errors, waiting, and ends."""

import json
import secrets
import signal
import subprocess
import sys

import pytest
from support.harness import mpiexec_command, rank_environ
from support.places import TESTS

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_any_order_from_any_thread_again_and_again(run_ranks, size):
    results = run_ranks("engine_cases:busy_ranks", size=size, threads=3, steps=2)
    for rank, (first, digests, again, more) in enumerate(results):
        for wrong, gathered, told, has_joined, refused in (first, again):
            assert wrong == [0, 0, 0]
            assert gathered == [{"rank": each} for each in range(size)]
            assert told == ["from", size - 1]
            assert has_joined
            assert refused
        assert digests == more, f"rank {rank}: a rerun gives other bits"


def test_sets_and_errors(run_ranks):
    for said in run_ranks("engine_cases:sets_and_errors", size=3):
        total, sets, mismatch, duplicate, removed, direct, again = said
        assert (total, sets) == (True, [3, [0, 1, 2, 3]])
        assert "'mismatch' has shape (4,)" in mismatch or "has shape (3,)" in mismatch
        assert "engines.py" not in mismatch
        assert (duplicate, removed, direct) == ("duplicate", True, True)
        assert "after the engine was stopped, needs blinkrun.init()" in again


def test_a_rank_that_waits_sleeps_whoever_drives(run_ranks):
    for seconds in run_ranks("engine_cases:waits_without_burning", size=2, seconds=1)[0]:
        assert seconds < 0.01


def test_an_interrupt_ends_the_wait_and_nothing_else(run_ranks):
    results = run_ranks("engine_cases:interrupted", size=2)
    assert results[0] == ["interrupted", [2.0] * 3, [2.0] * 3]
    assert results[1] == ["not interrupted", [2.0] * 3, [2.0] * 3]


def test_a_forked_child_is_no_rank(run_ranks):
    assert run_ranks("engine_cases:forked_child", size=2) == [[5, [2.0] * 3]] * 2


HEAD = """
import threading, numpy, blinkrun
from support.engines import allreduce, submit
from blinkrun import engine, runtime
from blinkrun.engine.request import Kind
runtime.init()
eng = engine.start()
ones = numpy.ones(3, numpy.float32)
allreduce(eng, 'x', ones)
"""
ENDS = {
    "requests are under way": "submit(eng, Kind.ALLREDUCE, f'{eng.world.rank}', [ones])",
    "another thread waits": (
        "handle = submit(eng, Kind.ALLREDUCE, f'{eng.world.rank}', [ones])\n"
        "def waits():\n"
        "    try:\n"
        "        handle.wait()\n"
        "    except RuntimeError as err:\n"
        "        print(type(err).__name__)\n"
        "threading.Thread(target=waits, daemon=True).start()"
    ),
}


@pytest.mark.parametrize("way", ENDS)
def test_a_program_that_ends_without_shutdown_ends(way, tmp_path):
    job = _run(tmp_path, HEAD + ENDS[way], size=3)
    assert (job.returncode, job.stderr) == (0, "")


def test_a_rank_that_ends_early_is_named_to_those_that_wait(tmp_path):
    body = "if eng.world.rank == 1:\n    raise SystemExit(0)\nallreduce(eng, 'weight', ones)"
    job = _run(tmp_path, HEAD + body, size=3)
    assert job.returncode != 0
    assert "PeerLeftError: allreduce 'weight': rank 1 has left" in job.stderr


def test_a_rank_that_is_killed_is_named_at_once_and_the_rest_goes_on():
    command = [sys.executable, str(TESTS / "ranks/cases/engine_cases.py"), secrets.token_hex(64)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "3"],
            env=rank_environ(40.0),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        answers = [rank.communicate(timeout=40) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[1].returncode == -signal.SIGKILL
    for out, err in (answers[0], answers[2]):
        assert out, err
        said, seconds, rest = json.loads(out)
        assert [rank for rank, _ in said] == [1, 1]
        assert "'layer.weight'" in said[0][1]
        assert "rank 1" in said[0][1]
        assert seconds < 5
        assert rest == [2.0] * 3


def _run(folder, text, size):
    script = folder / "script.py"
    script.write_text(text)
    return subprocess.run(
        [*mpiexec_command(size), sys.executable, str(script)],
        env=rank_environ(60.0),
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
