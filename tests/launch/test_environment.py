"""Variables that ranks get: forwarded ones, and their share of threads."""

from __future__ import annotations

import pytest

from blinkrun.errors import UsageError
from blinkrun.launcher.forward import forwarded
from blinkrun.launcher.slots import thread_environ, threads_per_rank
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
    assert thread_environ(8, 2, {}) == dict.fromkeys(names, "4")
    assert thread_environ(8, 2, {"OMP_NUM_THREADS": ""}) == dict.fromkeys(names, "4")
    assert thread_environ(8, 2, {"OMP_NUM_THREADS": "1"}) == dict.fromkeys(names[1:], "4")
    assert thread_environ(8, 2, dict.fromkeys(names, "1")) == {}
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
