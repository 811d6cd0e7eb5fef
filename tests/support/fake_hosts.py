"""Fake hosts for tests: as `blinkrun.bench.fake_hosts`, or the test is skipped and says why.

with fake_hosts(2, rate="1gbit") as hosts:
    blinkrun -np 4 -H hosts.slots(2, 2) --launch-agent hosts.agent   (on host 0: hosts.command)
    hosts.cut(1), hosts.mend(1), hosts.rate("10mbit", 1), hosts.processes(1)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from support.places import TESTS

from blinkrun.bench import fake_hosts as bench
from blinkrun.bench.fake_hosts import FakeHosts

SCRIPT = TESTS / "support/fake_hosts.sh"


def why_no_fake_hosts() -> str | None:
    """Return why there can be no fake hosts here, None if there can."""
    return bench.why_not(SCRIPT)


@contextlib.contextmanager
def fake_hosts(count: int = 2, rate: str | None = None) -> Iterator[FakeHosts]:
    """Make `count` hosts for a test; skips it where there can be none (``--require=hosts``)."""
    reason = why_no_fake_hosts()
    if reason is not None:
        pytest.skip(f"needs hosts: {reason}")
    with bench.fake_hosts(SCRIPT, count, rate) as hosts:
        yield hosts
