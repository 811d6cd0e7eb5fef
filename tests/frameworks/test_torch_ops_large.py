from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

NEEDED_GB = 12


def available_gb():
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1e6


@pytest.mark.slow
@pytest.mark.skipif(available_gb() < NEEDED_GB, reason=f"needs {NEEDED_GB} GB of memory")
def test_elements_are_counted_beyond_32_bits(run_ranks):
    want = [[3, 21, 41, 3], [8, 1], 5, [1, 1, 2]]
    assert run_ranks("torch_large_cases:run", 2, timeout_s=110) == [want] * 2
