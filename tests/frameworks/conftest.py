"""One job per number of ranks runs all torch cases; each test looks at the results of one.

To import torch takes a rank three seconds, TensorFlow nine: a job per test would take an hour.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.harness import RankRunner
from support.needs import need


class Job:
    """The results of all cases on `size` ranks."""

    def __init__(self, size: int, results: list[dict[str, Any]]) -> None:
        self.size = size
        self._results = results

    def of(self, case: str) -> list[Any]:
        """Return what `case` returned, rank by rank; fails the test if it raised.

        Skips the test where the case was left out: it is not for the backend of this job.
        """
        for rank, result in enumerate(self._results):
            for name, answer in result.items():
                if name.startswith("import ") and "raised" in answer:
                    pytest.fail(f"{name} on rank {rank}\n{answer['raised']}", pytrace=False)
        if all(case not in result for result in self._results):
            pytest.skip(f"{case} is not for this job")
        answers = [result[case] for result in self._results]
        raised = [f"--- rank {r}\n{a['raised']}" for r, a in enumerate(answers) if "raised" in a]
        if raised:
            pytest.fail(f"{case} on {self.size} ranks\n" + "\n".join(raised), pytrace=False)
        return [answer["returned"] for answer in answers]


ON_DEVICES = "2ranks-devices"
NOT_ON_DEVICES = [
    "torch_adasum_cases",  # it goes by the CPU, and tensors on the CPU pass for others here
    "dtypes_that_travel_alike_do_not_match",  # messages with other words
    "gradients_that_do_not_fit",
]


@pytest.fixture(
    scope="session",
    params=[1, 3, ON_DEVICES],  # the last one has two ranks
    ids=lambda size: size if size == ON_DEVICES else f"{size}ranks",
)
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, plan_cache: Path
) -> Job:
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")
    runner = RankRunner(
        tmp_path_factory.mktemp("torch"), environ={"BLINKRUN_CACHE_DIR": str(plan_cache)}
    )
    if request.param == ON_DEVICES:
        case, how = "torch_devices_suite:run_all", {"left_out": NOT_ON_DEVICES}
        return Job(2, runner(case, 2, timeout_s=JOB_TIMEOUT_S, **how))
    return Job(request.param, runner("torch_suite:run_all", request.param, timeout_s=JOB_TIMEOUT_S))


MakeJob = Callable[..., Job]
JOBS = {"job", "tf_job", "keras_job", "legacy_job", "device_job"}
JOB_TIMEOUT_S = 880  # for all cases of a kind; two minutes on a quiet machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give time to the tests of a job: the first of them runs all of its cases."""
    for item in items:
        if JOBS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(JOB_TIMEOUT_S + 20))


@pytest.fixture(scope="session")
def make_job(tmp_path_factory: pytest.TempPathFactory, plan_cache: Path) -> MakeJob:
    """``make_job("tf,keras", size, **environment)`` runs all cases of some kinds in one job."""
    pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

    def make(kinds: str, size: int, **environ: str) -> Job:
        given = {"BLINKRUN_CACHE_DIR": str(plan_cache), "TF_CPP_MIN_LOG_LEVEL": "2", **environ}
        runner = RankRunner(tmp_path_factory.mktemp(kinds), environ=given)
        only = os.environ.get("TEST_CASES", "")  # modules, comma-separated: while working on one
        how = {"timeout_s": JOB_TIMEOUT_S, "kinds": kinds, "only": only}
        return Job(size, runner("case_suite:run_all", size, **how))

    return make


@pytest.fixture(scope="session")
def tensorflow_job(make_job: MakeJob) -> Callable[[int], Job]:
    """All cases of TensorFlow and of Keras upon it on so many ranks, in one job for both."""

    @cache
    def on_ranks(size: int) -> Job:
        return make_job("tf,keras", size, KERAS_BACKEND="tensorflow")

    return on_ranks


@pytest.fixture(scope="session", params=[1, 3], ids=lambda size: f"{size}ranks")
def tf_job(request: pytest.FixtureRequest, tensorflow_job: Callable[[int], Job]) -> Job:
    need("tensorflow")
    return tensorflow_job(request.param)


@pytest.fixture(
    scope="session",
    params=[("tensorflow", 1), ("tensorflow", 3), ("torch", 2)],
    ids=lambda param: f"{param[0]}-{param[1]}ranks",
)
def keras_job(
    request: pytest.FixtureRequest, make_job: MakeJob, tensorflow_job: Callable[[int], Job]
) -> Job:
    need("keras")
    backend, size = request.param
    need(backend)
    is_torch = backend == "torch"
    return make_job("keras", size, KERAS_BACKEND=backend) if is_torch else tensorflow_job(size)


@pytest.fixture(scope="session", params=[2], ids=lambda size: f"{size}ranks")
def legacy_job(request: pytest.FixtureRequest, make_job: MakeJob) -> Job:
    """Cases that run with ``TF_USE_LEGACY_KERAS=1``: tf.keras is the package tf_keras."""
    need("tf_keras")
    return make_job("legacy", request.param, TF_USE_LEGACY_KERAS="1")
