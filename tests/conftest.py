"""Options, profiles and fixtures that all tests share.

``--run-slow`` runs what is marked slow, ``--every-kernel`` the compilations of ``make kernels``;
``--require=mpi,torch`` turns a skip whose reason names one of these into a failure, so that a test
run cannot pass by not testing.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parent
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from support.harness import RankRunner  # noqa: E402  (tests/ has just been put on the path)

# Where the tests run in the background (nohup, &), signals are ignored, and programs inherit that;
# the launcher, too, leaves an ignored signal ignored.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# No deadline per example: a machine that is busy elsewhere must not make a test fail.
settings.register_profile("local", deadline=None)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run tests marked slow as well")
    parser.addoption(
        "--every-kernel",
        action="store_true",
        help="compile the kernel for every pair of element type and kind of device (make kernels)",
    )
    parser.addoption(
        "--require",
        default="",
        metavar="THINGS",
        help="comma-separated; a skip whose reason names one of them is a failure",
    )


# What starts no ranks. Jobs of ranks come one at a time; all of this goes beside them.
_BESIDE = (
    "tests/cli/test_paper",
    "tests/cli/test_plan",
    "tests/cli/test_simulate",
    "tests/cli/test_topo",
    "tests/install/",
    "tests/native/",
    "tests/unit/",
)


class _JobsApart(LoadScopeScheduling):
    """One worker has what starts ranks, one after the other; the others all that goes beside."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


def _scope(nodeid: str) -> str:
    """Return which tests go to one worker together with this one."""
    if not nodeid.startswith(_BESIDE):
        return "jobs"
    return nodeid if nodeid.startswith("tests/unit/") else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return _JobsApart(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _scope(item.nodeid) != "jobs")  # what takes longest begins first
    if not config.getoption("--every-kernel"):
        left_out = [item for item in items if "every_kernel" in item.keywords]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if "every_kernel" not in item.keywords]
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="slow; run with --run-slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """Turn the skip in `report` into a failure if its reason names a required thing."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    for thing in filter(None, config.getoption("--require").split(",")):
        if re.search(rf"\b{re.escape(thing)}\b", reason, re.IGNORECASE):
            report.outcome = "failed"
            report.longrepr = f"--require={thing}, but this was to be skipped: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report, collector.config)
    return report


@pytest.fixture(scope="session")
def plan_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan cache for this run only: no test reads what an older version has left."""
    return tmp_path_factory.mktemp("plans")


@pytest.fixture
def run_ranks(tmp_path: Path, plan_cache: Path) -> RankRunner:
    """``run_ranks("module:function", size=3, count=7)``: see `support.harness.RankRunner`."""
    return RankRunner(tmp_path, environ={"BLINKRUN_CACHE_DIR": str(plan_cache)})
