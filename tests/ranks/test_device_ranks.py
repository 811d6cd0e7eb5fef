"""Ranks as processes, each with a fake device: memory is shared by handles of the runtime."""

import multiprocessing
import queue
import secrets
import sys
import time

import pytest
from support import fake_kernel
from support.places import TESTS

sys.path.insert(0, str(TESTS / "ranks" / "cases"))
import device_cases

DEADLINE_S = 60


@pytest.fixture(autouse=True, scope="module")
def kernel():
    """Built before ranks ask for it: their deadlines are for the calls."""
    return fake_kernel.load()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch, tmp_path):
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{TESTS / 'ranks' / 'cases'}")


def run(case, size, *, silent=(), method="forkserver", **params):
    """Return what each process answered; those in `silent` need not, the others must end well."""
    context = multiprocessing.get_context(method)
    context.set_forkserver_preload(["device_cases"])  # what takes most of a short run
    answers = context.Queue()
    secret = secrets.token_bytes(16)
    processes = [
        context.Process(target=device_cases.main, args=(case, rank, size, secret, answers, params))
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
            process.join(20 if len(said) == size - len(silent) else 0.1)
            if process.is_alive():
                process.kill()
                process.join()
    ends = {rank: process.exitcode for rank, process in enumerate(processes) if rank not in silent}
    assert set(ends.values()) == {0}, ends
    return said


@pytest.mark.parametrize(
    ("size", "how"),
    [
        (2, {}),
        (3, {"cut": [(0, 1)]}),
        (4, {"own": True}),  # every process sees its own device alone, as Slurm may have it
        (3, {"own": True, "ipc": False}),  # containers: all goes through host memory
    ],
)
def test_collectives_between_processes(size, how):
    said = run("everything", size, **how)
    assert said == {rank: [] for rank in range(size)}


@pytest.mark.parametrize("replay", [False, True])
def test_a_rank_that_is_killed_ends_the_kernels_of_the_others(replay):
    """Also those of a graph, which nobody counts."""
    said = run("one_is_killed", 3, silent=[1], replay=replay)
    assert sorted(said) == [0, 2]
    for took_s, words, leaks in said.values():
        assert took_s < 10
        assert "rank 1" in words
        assert "\n" not in words
        assert leaks == []


@pytest.mark.parametrize(
    ("call", "reason"),
    [("cudaMalloc", "out of memory"), ("cudaStreamCreateWithPriority", "unknown error")],
)
def test_what_fails_on_one_rank_while_they_join_is_told_to_all(call, reason):
    said = run("one_is_refused", 3, call=call, reason=reason)
    assert said[1][0] in ("DeviceError", "DeviceMemoryError")
    for _, words, leaks in said.values():
        assert "rank 1" in words
        assert "\n" not in words
        assert leaks == []


def test_handles_that_one_process_cannot_open_are_done_without():
    """The ranks that it does not reach meet it in host memory, and it them."""
    said = run("everything", 3, fault={"rank": 2, "call": "cudaIpcOpenMemHandle", "times": 1000})
    assert said == {rank: [] for rank in range(3)}


@pytest.mark.parametrize("how", ["dropped", "under way"])
def test_processes_end_though_nothing_was_closed(how):
    """At the end of the interpreter, executors go in any order; also while a kernel waits."""
    said = run("one_just_ends", 2, method="spawn", how=how)  # forks do not end the interpreter
    assert said == {0: "done", 1: "done"}


def test_a_job_over_mpi_calls_on_devices(run_ranks):
    pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")
    assert run_ranks("device_cases:calls_of_a_job", size=3, own=True) == [[]] * 3
