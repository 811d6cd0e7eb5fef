"""The core over several hosts against the reference, by a real MPI."""

import pytest

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")


@pytest.mark.parametrize("hosts", [[0, 1, 0, 2, 1]])
def test_same_bytes_as_the_reference(run_ranks, hosts):
    results = run_ranks("hosts_native_cases:as_the_reference", size=len(hosts), hosts=hosts)
    assert results == [[]] * len(hosts)
