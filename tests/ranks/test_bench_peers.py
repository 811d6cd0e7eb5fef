import importlib.util

import pytest

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch for the peer gloo"
)
PEERS = ["mpi", pytest.param("gloo", marks=needs_torch)]


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_gives_the_answer_that_the_benchmark_expects(run_ranks, peer):
    results = run_ranks("bench_cases:peer_results", size=3, timeout_s=100, peer=peer)
    for wrong in results:
        assert len(wrong) > 100
        assert not any(wrong.values()), {name: count for name, count in wrong.items() if count}
