import importlib.util

import pytest

from blinkrun.bench.work import COLLECTIVES

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

QUICK = ["--iters", "7", "--warmup", "1"]


def rows_of(lines):
    return [line.split() for line in lines if not line.startswith("#")]


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch for the peer gloo"
)
def test_both_peers_are_measured_in_the_same_run(run_ranks, tmp_path):
    path = str(tmp_path / "out.json")
    argv = ["--sizes", "4,64K", "--against", "mpi,gloo", *QUICK]
    first, second = run_ranks("bench_cases:whole_command", size=2, argv=argv, results=path)
    assert second["said"] == []  # one rank speaks
    assert [row[0] for row in rows_of(first["said"])] == ["4", "65536"]
    assert (first["code"], second["code"]) == (0, 0)
    assert first["json"]["ranks"] == 2
    for row in first["json"]["rows"]:
        assert row["wrong"] == 0
        assert set(row["peers"]) == {"mpi", "gloo"}
        assert all(peer["time_us"] > 0 for peer in row["peers"].values())
        assert all(each["cores"] > 0 for each in (row, *row["peers"].values()))


@pytest.mark.parametrize("buffers", ["arena", "user"])
def test_every_collective_is_measured_and_right(run_ranks, buffers):
    common = ["--buffers", buffers, "--sizes", "12,3000,300000", *QUICK, "--root", "2"]
    argvs = [["--collective", collective, *common] for collective in COLLECTIVES]
    results = run_ranks("bench_cases:whole_commands", size=3, argvs=argvs)
    for collective, *said in zip(COLLECTIVES, *results, strict=True):
        assert [each["code"] for each in said] == [0, 0, 0], collective
        rows = [(row[0], row[8]) for row in rows_of(said[0]["said"])]
        assert rows == [("12", "0"), ("3000", "0"), ("300000", "0")], collective


def test_every_type_is_measured_and_right(run_ranks):
    dtypes = ["bool", "uint8", "int64", "float16", "bfloat16", "float64"]
    common = ["--op", "max", "--sizes", "8,64K", "--against", "mpi", *QUICK]
    argvs = [["--dtype", dtype, *common] for dtype in dtypes]
    first, _ = run_ranks("bench_cases:whole_commands", size=2, argvs=argvs)
    for dtype, said in zip(dtypes, first, strict=True):
        assert said["code"] == 0
        rows = [(row[2], row[3], row[8]) for row in rows_of(said["said"])]
        assert rows == [(dtype, "max", "0")] * 2


def test_a_single_rank_measures_itself(run_ranks):
    (only,) = run_ranks("bench_cases:whole_command", size=1, argv=["--sizes", "4,1K", *QUICK])
    assert only["code"] == 0
    assert [row[0] for row in rows_of(only["said"])] == ["4", "1024"]


def test_wrong_usage_is_said_once_and_ends_with_2(run_ranks):
    first, second = run_ranks("bench_cases:whole_command", size=2, argv=["--against", "nccl"])
    assert first["talked"] == [
        "blinkrun: bench: --against nccl is unknown; known are mpi, gloo",
    ]
    assert second["talked"] == []
    assert (first["code"], second["code"]) == (2, 0)  # the one that has said why
    assert first["said"] == second["said"] == []


def test_help_is_printed_once(run_ranks):
    first, second = run_ranks("bench_cases:whole_command", size=2, argv=["--help"])
    assert first["said"][0].startswith("usage: blinkrun -np N bench")
    assert second["said"] == []
    assert (first["code"], second["code"]) == (0, 0)
