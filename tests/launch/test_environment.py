"""Variables that ranks get: forwarded ones, and their share of threads."""

from __future__ import annotations

import pytest

from blinkrun.errors import UsageError
from blinkrun.launcher.far import portable
from blinkrun.launcher.forward import forwarded
from blinkrun.launcher.slots import thread_names, threads_per_rank
from blinkrun.launcher.spec import Form, JobSpec, Program

TRUE = Program(Form.EXECUTABLE, ("true",))


@pytest.mark.parametrize(
    ("requests", "found"),
    [
        ([], {}),
        (["HOME"], {"HOME": "/h"}),
        (["A=1", "A=2"], {"A": "2"}),
        (["A=b=c d"], {"A": "b=c d"}),
        (["HOME="], {"HOME": ""}),
    ],
)
def test_forwarded(requests: list[str], found: dict[str, str]) -> None:
    assert forwarded(requests, {"HOME": "/h"}) == found


@pytest.mark.parametrize(
    ("request_", "said"),
    [("NOT_SET", "-x NOT_SET: NOT_SET is not set here"), ("1A=2", "not a variable"), ("=", "not")],
)
def test_what_cannot_be_forwarded(request_: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        forwarded([request_], {})


def test_a_value_that_cannot_be_used_is_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        forwarded(["A-B=s3cr3t"], {})
    assert "s3cr3t" not in str(caught.value)


def test_threads() -> None:
    assert [threads_per_rank(8, ranks) for ranks in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    assert thread_names({}) == names
    assert thread_names({"OMP_NUM_THREADS": ""}) == names
    assert thread_names({"OMP_NUM_THREADS": "1"}) == names[1:]
    assert thread_names(dict.fromkeys(names, "1")) == ()
    for cores, ranks in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="need at least 1 of each"):
            threads_per_rank(cores, ranks)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_ranks": 0}, "-np 0: need 1 to 4096 ranks"),
        ({"num_ranks": 5000}, "-np 5000"),
        ({"timeout_s": 0.0}, "--timeout 0: need a positive number of seconds"),
        ({"time_limit_s": -1.0}, "--time-limit -1"),
        ({"start_timeout_s": float("nan")}, "--start-timeout nan"),
        ({"timeout_s": float("inf")}, "--timeout inf"),
    ],
)
def test_a_job_that_makes_no_sense_cannot_be_described(fields: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        JobSpec(**{"num_ranks": 2, "program": TRUE, **fields})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no program"):
        Program(Form.EXECUTABLE, ())


def test_what_is_about_one_host_or_terminal_stays_there() -> None:
    kept = {"PATH": "/bin", "HOME": "/h", "LD_LIBRARY_PATH": "/l", "OMP_NUM_THREADS": "2"}
    kept |= {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0", "XDG_CACHE_HOME": "/c"}
    left = ["HOSTNAME", "PWD", "DISPLAY", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "SLURM_PROCID", "_"]
    assert portable({**kept, **dict.fromkeys(left, "x")}) == kept


@pytest.mark.parametrize(
    ("timeout_s", "silence_s"), [(None, 54.0), (600.0, 54.0), (20.0, 18.0), (1.0, 5.0)]
)
def test_a_host_is_lost_before_the_ranks_that_wait_for_it_give_up(
    timeout_s: float | None, silence_s: float
) -> None:
    assert JobSpec(2, TRUE, timeout_s=timeout_s).silence_s == pytest.approx(silence_s)
