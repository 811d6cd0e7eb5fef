import json

import pytest
from support.bench_fakes import Alone, FakeClock, FakeLibrary
from support.emulated import job_for, options_of, rows_of

from blinkrun.bench.emulate import Bench, measure, run
from blinkrun.bench.emulate_table import (
    EmulatedRow,
    Measured,
    as_json,
    header_lines,
    parameter_lines,
    row_line,
)

MIB = 1 << 20
WORDS = "dgx-1v --gpus 1,4,5,7 --against ring --sizes 1M --collective broadcast --root 4"


@pytest.fixture(scope="module")
def job():
    return job_for(WORDS)


def make_row(job, ours_us, ring_us, wrong=0):
    (call,) = job.calls
    measured = {"blinkrun": Measured(ours_us, wrong), "ring": Measured(ring_us, 0)}
    return EmulatedRow(job.work(call), call, {n: m for n, m in measured.items() if m.time_us})


def test_bandwidths_are_those_of_the_machine(job):
    """1 MiB in 50 ms at a thousandth of the rate is 20.97 GB/s."""
    ours, ring = rows_of([row_line(make_row(job, 50_000.0, 200_000.0), job)])[0]
    (call,) = job.calls
    simulated_us = call.simulated_ns / 1e3
    assert ours == [
        *("1048576", "262144", "1", "50000", "20.97", "20.97"),
        *(f"{simulated_us:.0f}", f"{50_000 / simulated_us:.3f}", "0"),
    ]
    assert ring[:2] == ["200000", "5.24"]
    assert ring[-1] == "4.00"


def test_headers_stand_over_their_columns(job):
    line = row_line(make_row(job, 50_000.0, 200_000.0), job)
    names, units = header_lines(job)
    assert len(line) == len(names) == len(units)
    assert line.index("|") == names.index("|") == units.index("|")


def test_without_a_peer_there_is_one_group_of_columns():
    alone = job_for(WORDS.replace("--against ring", ""))
    line = row_line(make_row(alone, 50_000.0, 0.0), alone)
    assert "|" not in line + header_lines(alone)[0]
    assert len(line) == len(header_lines(alone)[0])


def test_the_first_lines_say_what_is_emulated(job):
    text = "\n".join(parameter_lines(job, options_of(WORDS)))
    assert "broadcast, root GPU 4, on an emulated dgx-1v" in text
    assert "GPUs 1,4,5,7, links all, scale 1000" in text
    assert "of depth" in text
    assert "ring: 1 ring over pcie, chunks of" in text
    assert all(line.startswith("# ") for line in text.splitlines())


def test_trees_that_differ_by_size_have_a_line_each():
    words = "dgx-1v --gpus 0-3 --sizes 4K,8M"
    lines = parameter_lines(job_for(words), options_of(words))
    trees = [line for line in lines if line.startswith("# trees")]
    assert [line.split(":")[0] for line in trees] == ["# trees, 4 KiB", "# trees, 8 MiB"]


def test_json_is_that_of_a_bench_and_says_what_was_emulated(job):
    result = json.loads(json.dumps(as_json([make_row(job, 50_000.0, 200_000.0)], job)))
    assert result["emulated"] == {
        "machine": "dgx-1v",
        "gpus": [1, 4, 5, 7],
        "links": "all",
        "scale": 1000,
        "root_gpu": 4,
    }
    assert {"ranks", "collective", "dtype", "buffers"} < set(result)
    (row,) = result["rows"]
    assert row["algbw_gb_per_s"] == pytest.approx(20.97, abs=0.01)
    assert row["emulated_over_simulated"] == pytest.approx(50_000 / row["simulated_us"])
    ring = row["peers"]["ring"]
    assert ring["algbw_gb_per_s"] == pytest.approx(5.24, abs=0.01)
    assert (ring["kind"], ring["num_rings"], ring["program"]) == ("pcie", 1, "ring")
    assert row["num_trees"] >= 1
    assert row["bound_gb_per_s"] >= row["rate_gb_per_s"] > 0


def bench_of(clock, durations_s, loaded, spoil=None):
    library = FakeLibrary("blinkrun", clock, durations_s, calls=loaded, spoil=spoil)
    return Bench(
        library, Alone(), lambda program, chunk_bytes: loaded.append((program, chunk_bytes)), clock
    )


def test_each_program_is_loaded_once_checked_and_then_timed(job):
    loaded = []
    options = options_of(f"{WORDS} --rounds 2 --iters 4")
    (call,) = job.calls
    ways = job.ways(call, job.ring_programs())
    trees, ring = [(way.program, way.chunk_bytes) for way in ways]
    bench = bench_of(FakeClock(), [9.0, 1.0, 1.0, 4.0, 2.0, 9.0, 3.0, 3.0, 7.0, 9.0], loaded)
    row = measure(job, call, ways, options, bench)
    assert loaded == [trees, *["blinkrun"] * 5, ring, *["blinkrun"] * 5]
    assert row.measured["blinkrun"].time_us == pytest.approx(2e6)  # rounds of 1 s and 3 s
    assert row.measured["ring"].time_us == pytest.approx(5.5e6)  # of 3 s and 8 s


def test_the_command_prints_a_table_and_writes_its_rows(tmp_path, capsys):
    path = tmp_path / "out.json"
    words = "dgx-1v --gpus 1,4,5,7 --against ring --sizes 64K,1M --collective broadcast"
    job, options = job_for(words), options_of(f"{words} --json {path}")
    code = run(job, options, job.ring_programs(), bench_of(FakeClock(), [0.1], []))
    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert [row[0][0] for row in rows_of(lines)] == ["65536", "1048576"]
    assert "# Wrong elements: 0 OK" in lines
    assert [row["size_bytes"] for row in json.loads(path.read_text())["rows"]] == [65536, 1 << 20]


def test_a_wrong_result_of_rings_or_trees_fails_the_command(capsys):
    def spoil(buffers):
        buffers.recv[0] = -1

    words = "dgx-1v --gpus 1,4,5,7 --against ring --sizes 64K --collective broadcast"
    job = job_for(words)
    bench = bench_of(FakeClock(), [0.1], [], spoil)
    assert run(job, options_of(words), job.ring_programs(), bench) == 1
    lines = capsys.readouterr().out.splitlines()
    ours, ring = rows_of(lines)[0]
    assert (ours[-1], ring[-2]) == ("1", "1")
    assert "# Wrong elements: 2 FAILED" in lines


def test_other_ranks_than_the_first_print_nothing(capsys):
    class Second(Alone):
        rank = 1

    words = "dgx-1v --gpus 1,4 --sizes 64K --collective broadcast --root 4"
    job, clock = job_for(words), FakeClock()
    library = FakeLibrary("blinkrun", clock, [0.1])
    run(job, options_of(words), {}, Bench(library, Second(), lambda *_, **__: None, clock))
    assert capsys.readouterr().out == ""
