import importlib.util

import pytest

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch for the peer gloo"
)
PEERS = ["mpi", pytest.param("gloo", marks=needs_torch)]


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("size", [2, 3])
def test_a_peer_gives_the_answer_that_the_benchmark_expects(run_ranks, peer, size):
    results = run_ranks("bench_cases:peer_results", size=size, timeout_s=100, peer=peer)
    for wrong in results:
        assert len(wrong) > 100
        assert not any(wrong.values()), {name: count for name, count in wrong.items() if count}


@needs_torch
def test_the_command_measures_both_peers_in_one_run(run_ranks, tmp_path):
    path = tmp_path / "out.json"
    argv = ["--sizes", "4,64K", "--iters", "7", "--against", "mpi,gloo", "--json", str(path)]
    first, second = run_ranks("bench_cases:whole_command", size=2, argv=argv)
    assert second["printed"] == []  # one rank speaks
    assert [line.split()[0] for line in first["printed"] if not line.startswith("#")] == [
        "4",
        "65536",
    ]
    assert (first["code"], second["code"]) == (0, 0)
    assert first["json"]["ranks"] == 2
    for row in first["json"]["rows"]:
        assert row["wrong"] == 0
        assert set(row["peers"]) == {"mpi", "gloo"}
        assert all(peer["time_us"] > 0 for peer in row["peers"].values())


def test_wrong_usage_is_refused_alike_on_every_rank(run_ranks):
    argv = ["--against", "nccl"]
    results = run_ranks("bench_cases:whole_command", size=2, argv=argv)
    assert results == [{"error": "--against nccl is unknown; known are mpi, gloo"}] * 2
