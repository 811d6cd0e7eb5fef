"""The core's own tests under ASan and UBSan and under TSan; `make plain` is for hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(1200)  # a core to itself, at best
@pytest.mark.parametrize("variant", ["address", "thread"])
def test_core_is_right_and_clean(variant):
    """Each variant runs every program on 1 to 5 ranks, every kernel, and the failures."""
    # Beside jobs of ranks it must not take their cores too.
    jobs = "1" if "PYTEST_XDIST_WORKER" in os.environ else str(len(os.sched_getaffinity(0)))
    done = subprocess.run(
        ["make", "-j", jobs, variant, f"PYTHON={sys.executable}"],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=1180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "all native tests passed" in done.stdout
