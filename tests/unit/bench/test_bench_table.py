import json

import pytest
from support.bench_fakes import Alone, FakeClock, FakeLibrary

from blinkrun.bench.main import run
from blinkrun.bench.measure import Row
from blinkrun.bench.options import parse
from blinkrun.bench.table import as_json, header_lines, row_line

MIB = 1 << 20


def make_row(options, time_us, wrong=0, size_bytes=MIB):
    return Row(options.work(size_bytes, 2), wrong, time_us)


def test_a_line_has_the_columns_of_nccl_tests_and_a_ratio_for_each_peer():
    pytest.importorskip("torch", reason="needs torch for the peer gloo")
    options = parse(["--sizes", "1M", "--against", "mpi,gloo"], 2)
    row = make_row(options, {"blinkrun": 100.0, "mpi": 250.0, "gloo": 2000.0})
    ours, mpi, gloo = (part.split() for part in row_line(row, options).split("|"))
    assert ours == ["1048576", "262144", "float32", "sum", "-1", "100.00", "10.49", "10.49", "0"]
    assert mpi == ["250.00", "4.19", "2.50"]
    assert gloo == ["2000", "0.52", "20.00"]


def test_headers_stand_over_their_columns():
    argv = ["--sizes", "1M", "--against", "mpi", "--memory"]
    options = parse(argv, 2)
    row = make_row(options, {"blinkrun": 1.0, "mpi": 2.0, "memory add": 3.0, "memory copy": 4.0})
    names, units = header_lines(options)
    line = row_line(row, options)
    assert len(line) == len(names) == len(units)
    assert [i for i, c in enumerate(line) if c == "|"] == [
        i for i, c in enumerate(names) if c == "|"
    ]
    assert line.split("|")[-1].split() == ["349.53", "300"]  # the faster way, 3 us, over ours


def test_a_peer_that_refuses_shows_dashes_and_is_absent_from_json():
    options = parse(["--sizes", "1M", "--against", "mpi", "--memory"], 2)
    row = make_row(options, {"blinkrun": 100.0})
    assert row_line(row, options).split("|")[1].split() == ["-", "-", "-"]
    assert as_json([row], options, [2])["rows"][0]["peers"] == {}


def test_json_has_exactly_the_documented_form():
    options = parse(["--sizes", "1M", "--against", "mpi", "--buffers", "user"], 2)
    row = Row(options.work(MIB, 2), 0, {"blinkrun": 100.0, "mpi": 200.0}, {"blinkrun": 1.5})
    result = as_json([row], options, [1, 1])
    assert json.loads(json.dumps(result)) == {
        "ranks": 2,
        "hosts": [1, 1],
        "collective": "allreduce",
        "dtype": "float32",
        "buffers": "user",
        "rows": [
            {
                "size_bytes": MIB,
                "time_us": 100.0,
                "algbw_gb_per_s": pytest.approx(10.48576),
                "busbw_gb_per_s": pytest.approx(10.48576),
                "cores": 1.5,
                "wrong": 0,
                "peers": {
                    "mpi": {"time_us": 200.0, "algbw_gb_per_s": pytest.approx(5.24288)},
                },
            }
        ],
    }


def make_library(name, spoil=None, refusal=None):
    return FakeLibrary(name, FakeClock(), [0.1], spoil=spoil, refusal=refusal)


def test_the_command_echoes_its_parameters_first_and_counts_at_the_end(capsys, tmp_path):
    path = tmp_path / "out.json"
    argv = ["--sizes", "4,1K", "--iters", "1", "--rounds", "1", "--json", str(path)]
    code = run(parse(argv, 1), make_library("blinkrun"), [], Alone())
    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert "allreduce, 1 rank(s)" in lines[0]
    assert [line.split()[0] for line in lines if not line.startswith("#")] == ["4", "1024"]
    assert "# Wrong elements: 0 OK" in lines
    assert [row["size_bytes"] for row in json.loads(path.read_text())["rows"]] == [4, 1024]


def test_a_wrong_result_fails_the_command(capsys):
    def spoil(buffers):
        buffers.recv[0] = -1

    argv = ["--sizes", "1K", "--iters", "1", "--rounds", "1"]
    assert run(parse(argv, 1), make_library("blinkrun", spoil), [], Alone()) == 1
    assert "# Wrong elements: 1 FAILED" in capsys.readouterr().out


def test_a_peer_that_refuses_says_why(capsys):
    argv = ["--sizes", "1K", "--iters", "1", "--rounds", "1", "--against", "mpi"]
    peers = [make_library("mpi", refusal="mpi has no bfloat16")]
    assert run(parse(argv, 1), make_library("blinkrun"), peers, Alone()) == 0
    assert "# mpi has no bfloat16: '-' there" in capsys.readouterr().out.splitlines()


def test_other_ranks_than_the_first_print_nothing(capsys):
    class Second(Alone):
        rank = 1
        size = 2

    argv = ["--sizes", "1K", "--iters", "1", "--rounds", "1", "--collective", "broadcast"]
    ours = make_library("blinkrun")
    run(parse([*argv, "--root", "1"], 2), ours, [], Second())
    assert capsys.readouterr().out == ""
