"""One job per number of ranks runs all torch cases; each test looks at the results of one.

Importing torch on four ranks takes four seconds: a job per test would take minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.harness import RankRunner


class Job:
    """The results of all cases on `size` ranks."""

    def __init__(self, size: int, results: list[dict[str, Any]]) -> None:
        self.size = size
        self._results = results

    def of(self, case: str) -> list[Any]:
        """Return what `case` returned, rank by rank; fails the test if it raised."""
        answers = [result[case] for result in self._results]
        raised = [f"--- rank {r}\n{a['raised']}" for r, a in enumerate(answers) if "raised" in a]
        if raised:
            pytest.fail(f"{case} on {self.size} ranks\n" + "\n".join(raised), pytrace=False)
        return [answer["returned"] for answer in answers]


@pytest.fixture(scope="session", params=[1, 2, 3, 4], ids=lambda size: f"{size}ranks")
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, plan_cache: Path
) -> Job:
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")
    runner = RankRunner(
        tmp_path_factory.mktemp("torch"), environ={"BLINKRUN_CACHE_DIR": str(plan_cache)}
    )
    return Job(request.param, runner("torch_suite:run_all", request.param, timeout_s=110))
