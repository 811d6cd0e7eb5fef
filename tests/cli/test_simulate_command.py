"""`blinkrun simulate`: text, JSON, trace, pictures, and what it says of wrong input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.golden import check_golden

from blinkrun.cli import simulate_options
from blinkrun.launcher.cli import main
from blinkrun.topology.probe import probe_host

Captured = pytest.CaptureFixture[str]
NUMBER = (int, float)
PINNED = "--trees packed --chunk 256K --channels 2 --sizes 1K,1M,100000000"  # no search
TIMES = {
    "chunk_bytes": int,
    "time_ns": int,
    "seconds": NUMBER,
    "algbw_gb_per_s": NUMBER,
    "busbw_gb_per_s": NUMBER,
}


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plan cache for this test alone."""
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path / "cache"))


def run(capsys: Captured, words: str) -> tuple[int, str, str]:
    code = main(["simulate", *words.split()])
    out, err = capsys.readouterr()
    # what a slow machine says meanwhile
    talk = [line for line in err.splitlines(keepends=True) if " sizes are done" not in line]
    return code, out, "".join(talk)


def report(capsys: Captured, words: str) -> Any:
    code, out, err = run(capsys, f"{words} --json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_options_are_frozen() -> None:
    """Scripts rely on these: an option may be added here, none may go or change its meaning."""
    assert set(simulate_options.make_parser().options) == {
        *("--topology", "--gpus", "--sizes", "--root", "--links", "--against", "--trees"),
        *("--chunk", "--channels", "--hosts", "--network-gbps", "--json", "--plot", "--trace"),
        *("--bandwidths", "--partial", "--report", "--help", "-h"),
    }


def test_help_fits_a_screen_and_ends_with_an_example(capsys: Captured) -> None:
    code, out, err = run(capsys, "--help")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 90
    assert lines[-1].startswith("  blinkrun simulate ")
    check_golden("cli/simulate_help.txt", out)


def test_help_loads_no_library() -> None:
    code = (
        "import sys; from blinkrun.launcher.cli import main; main(['simulate', '--help'])\n"
        "heavy = {'numpy', 'mpi4py', 'torch', 'scipy', 'networkx', 'matplotlib'}\n"
        "heavy |= {'blinkrun.planner.solve', 'blinkrun.simulator.engine'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dgx-1v", f"allreduce --topology dgx-1v --links nvlink {PINNED} --against ring"),
        ("dgx-2", f"allreduce --topology dgx-2 --links nvlink {PINNED} --against ring"),
        ("alltoall", "alltoall --topology dgx-2 --gpus 0-3 --sizes 1M"),
        ("root", f"broadcast --topology dgx-1v --gpus 0-2 --root 2 --links nvlink {PINNED}"),
    ],
)
def test_text(capsys: Captured, name: str, words: str) -> None:
    code, out, err = run(capsys, words)
    assert (code, err) == (0, "")
    table, path, resources = out.rsplit("\n\n", 2)
    assert "tree over " in path
    assert "are launch 20 us; step " in path
    check_golden(f"cli/simulate_{name}.txt", f"{table}\n\n{resources}")


def test_json_has_these_keys_and_no_others(capsys: Captured) -> None:
    words = "allreduce --topology dgx-1v --gpus 0,1,4 --sizes 4,1M --against ring"
    found = report(capsys, words)
    cost = {"name", "launch_ns", "step_ns", "efficiency", "memory_gb_per_s"}
    assert set(found) == {
        *("version", "machine", "what", "collective", "links", "hosts", "network_gbps", "root"),
        *("trees", "against", "cost", "ring_cost", "bound_gb_per_s", "bound_why", "ring"),
        *("rows", "largest"),
    }
    assert set(found["cost"]) == set(found["ring_cost"]) == cost
    assert set(found["ring"]) == {"kind", "rings", "rate_gb_per_s"}
    row = {"bytes", "trees", "num_trees", "depth", "channels", "bound_part", "ring", *TIMES}
    for one in found["rows"]:
        assert set(one) == row
        assert set(one["ring"]) == {"name", "ratio", *TIMES}
        for part in (one, one["ring"]):
            assert all(isinstance(part[key], kind) for key, kind in TIMES.items())
    assert set(found["largest"]) == {"bytes", "critical", "resources"}
    for use in found["largest"]["resources"].values():
        assert set(use) == {"capacity_gb_per_s", "bytes", "busy_seconds", "utilisation"}


def test_numbers_agree_with_each_other(capsys: Captured) -> None:
    words = "allreduce --topology dgx-1v --gpus 0-3 --links nvlink --sizes 64K,64M --against ring"
    found = report(capsys, f"{words} --trees packed --chunk 256K --channels 2")
    for row in found["rows"]:
        for part in (row, row["ring"]):
            assert part["seconds"] == part["time_ns"] / 1e9
            assert part["algbw_gb_per_s"] == pytest.approx(row["bytes"] / part["time_ns"])
            assert part["busbw_gb_per_s"] == pytest.approx(part["algbw_gb_per_s"] * 2 * 3 / 4)
        assert row["bound_part"] == pytest.approx(row["algbw_gb_per_s"] / found["bound_gb_per_s"])
        assert row["bound_part"] <= 1
        assert row["ring"]["ratio"] == pytest.approx(row["ring"]["time_ns"] / row["time_ns"])
    assert found["rows"][-1]["bytes"] == found["largest"]["bytes"]
    assert found["rows"][-1]["bound_part"] > 0.8


def test_a_link_alone_takes_what_its_bytes_take(capsys: Captured) -> None:
    """Two GPUs over one lane: 23 bytes a ns, and what starting and the hop cost."""
    words = "broadcast --topology dgx-1v --gpus 0,1 --links nvlink --sizes 23M --channels 1"
    found = report(capsys, words)
    (row,) = found["rows"]
    wire_ns = 1 << 20
    assert found["bound_gb_per_s"] == 23
    assert wire_ns + found["cost"]["launch_ns"] <= row["time_ns"] <= wire_ns * 1.05


def test_the_fastest_trees_are_no_slower_than_any_by_name(capsys: Captured) -> None:
    words = "allreduce --topology dgx-1v --gpus 0,1,2 --links nvlink --sizes 4K,1M"
    auto = report(capsys, words)["rows"]
    for trees in ("packed", "few", "shallow", "one-hop"):
        named = report(capsys, f"{words} --trees {trees}")["rows"]
        for one, other in zip(auto, named, strict=True):
            assert trees in other["trees"]
            assert one["time_ns"] <= other["time_ns"] * 1.02


def test_chunks_and_channels_are_as_asked(capsys: Captured) -> None:
    words = "broadcast --topology dgx-1v --links nvlink --sizes 8M --chunk 128K --channels 3"
    (row,) = report(capsys, f"{words} --trees packed")["rows"]
    assert (row["chunk_bytes"], row["channels"]) == (128 << 10, 3)


def test_sizes_are_rounded_to_whole_elements_in_every_block(capsys: Captured) -> None:
    words = "allgather --topology dgx-1v --gpus 0-2 --links nvlink"
    (row,) = report(capsys, f"{words} --sizes 1000")["rows"]
    assert row["bytes"] == 996


def test_measured_bandwidths_replace_ours(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "measured"
    words = "broadcast --topology dgx-1v --gpus 0,1 --links nvlink --sizes 4 --bandwidths"
    times = []
    for latency_ns in (100, 700):
        file.write_text(f"latency_nvlink = {latency_ns} ns\n")
        times.append(report(capsys, f"{words} {file}")["rows"][0]["time_ns"])
    assert times[1] - times[0] == 600


def test_root_is_a_gpu_of_the_machine(capsys: Captured) -> None:
    words = "broadcast --topology dgx-1v --gpus 4,0,1 --links nvlink --sizes 1M --root"
    assert report(capsys, f"{words} 1")["root"] == 1
    assert report(capsys, f"{words} 4")["hosts"] == [[4, 0, 1]]


def test_cpu_ranks_share_memory_where_there_is_no_gpu(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blinkrun.topology.probe.probe_here", lambda: (None, probe_host()))
    found = report(capsys, "allreduce --gpus 0-3 --sizes 4,1M --against ring")
    assert (found["what"], found["links"], found["hosts"]) == ("rank", "shm", [[0, 1, 2, 3]])
    assert found["rows"][0]["time_ns"] < 5000  # no kernel is launched
    assert found["rows"][-1]["ring"]["ratio"] > 1


def test_several_hosts(capsys: Captured) -> None:
    words = "allreduce --topology dgx-1v --gpus 5,6,7/6,7 --hosts 2 --network-gbps 400 --sizes 64M"
    found = report(capsys, f"{words} --chunk 512K --channels 2 --against ring")
    (row,) = found["rows"]
    assert (found["hosts"], found["network_gbps"]) == ([[5, 6, 7], [6, 7]], 400)
    assert (row["trees"], found["ring"]["kind"]) == ("over hosts", "network")
    assert 0.75 < row["bound_part"] <= 1
    assert row["ring"]["ratio"] > 5  # a ring is held to one GPU's PCIe link
    network = {name for name in found["largest"]["resources"] if "network" in name}
    assert network == {f"host {host} network {way}" for host in range(2) for way in ("in", "out")}


@pytest.mark.parametrize(
    ("collective", "mb_per_s"),
    [
        ("allreduce", Fraction(5, 4)),
        ("reduce", Fraction(5, 4)),
        # the blocks of the other three ranks enter, or leave, the smallest host
        ("allgather", Fraction(5, 4) * Fraction(5, 3)),
        ("reducescatter", Fraction(5, 4) * Fraction(5, 3)),
        # six blocks of a fifth each go either way
        ("alltoall", Fraction(5, 4) * Fraction(5, 6)),
    ],
)
def test_every_collective_fills_a_slow_network(
    capsys: Captured, collective: str, mb_per_s: Fraction
) -> None:
    words = f"{collective} --topology dgx-1v --gpus 5,6,7/6,7 --hosts 2 --network-gbps 0.01"
    found = report(capsys, f"{words} --sizes 5M")
    (row,) = found["rows"]
    assert found["network_gbps"] == 0.01
    assert found["bound_gb_per_s"] == pytest.approx(float(mb_per_s / 1000))
    assert 0.99 <= row["bound_part"] <= 1
    used = found["largest"]["resources"]["host 0 network in"]
    assert used["capacity_gb_per_s"] == 0.00125


def test_many_slow_hosts_are_timed_by_one_of_them(capsys: Captured) -> None:
    words = "allreduce --topology dgx-1v --gpus 0-3 --hosts 16 --network-gbps 0.01 --sizes 8M"
    (row,) = report(capsys, words)["rows"]
    assert row["algbw_gb_per_s"] == pytest.approx(0.00125 * 16 / 30, rel=0.01)


def test_many_hosts_are_timed_by_one_of_them(capsys: Captured) -> None:
    words = "allreduce --topology dgx-1v --gpus 0-3 --hosts 64 --network-gbps 100 --sizes 512M"
    found = report(capsys, f"{words} --chunk 64K --channels 1")
    (row,) = found["rows"]
    assert len(found["hosts"]) == 64
    assert found["bound_gb_per_s"] == pytest.approx(12.5 * 64 / 126)
    assert 0.9 < row["bound_part"] <= 1
    assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"] * 2 * 255 / 256)
    busy = found["largest"]["resources"]
    assert busy["host 0 network out"]["utilisation"] == max(u["utilisation"] for u in busy.values())
    assert "GPUs 0-3 of each" in run(capsys, f"{words} --chunk 64K --channels 1")[1]


def test_the_trace_is_one_that_perfetto_reads(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    words = "allreduce --topology dgx-1v --gpus 0,1,4 --links nvlink --sizes 1K,1M --against ring"
    found = report(capsys, f"{words} --trace {file}")
    trace = json.loads(file.read_text())
    events = trace["traceEvents"]
    ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    longest = max(found["rows"][-1]["time_ns"], found["rows"][-1]["ring"]["time_ns"])
    assert longest / 1000 * 0.9 < max(ends) <= longest / 1000 + 1e-6
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert any(name.startswith("trees") for name in names)
    assert any(name.startswith("rings") for name in names)
    by_name = {(event["pid"], event["args"]["name"]) for event in events if event["ph"] == "M"}
    assert len({pid for pid, name in by_name if name in names}) == len(names)


@pytest.mark.parametrize("against", ["", "--against ring"])
def test_pictures_are_the_same_bytes_each_time(
    capsys: Captured, tmp_path: Path, against: str
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    files = [tmp_path / f"{number}.svg" for number in range(2)]
    words = f"allreduce --topology dgx-1v --gpus 0,1,4 --links nvlink --sizes 1K,1M {against}"
    for file in files:
        assert run(capsys, f"{words} --plot {file}")[0] == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert b"<dc:date>" not in files[0].read_bytes()


DGX1V = "allreduce --topology dgx-1v"
WRONG = [
    ("", "which collective? one of allreduce, broadcast, reduce, allgather, reducescatter"),
    ("allreduc", "collective allreduc is unknown; did you mean allreduce?"),
    ("allreduce --topology dgx-1w", "no machine 'dgx-1w' in the catalog; near are dgx-1v"),
    (f"{DGX1V} --gpus 0,9", "--gpus 9: dgx-1v has GPUs 0-7"),
    (f"{DGX1V} --gpus 0", "allreduce of GPU 0 alone: need at least two"),
    (f"{DGX1V} --gpus 0,1/", "--gpus : '' is no GPU number; write it as 0,1,4 or 0-3"),
    (f"{DGX1V} --sizes 5X", "--sizes: '5X' is no size; write bytes with an optional K, M or G"),
    (f"{DGX1V} --sizes 1M,", "--sizes: '' is no size"),
    (f"{DGX1V} --sizes 0", "--sizes 0: need at least 1 byte, at most 1024G"),
    (f"{DGX1V} --sizes 2T", "--sizes 2T: need at least 1 byte, at most 1024G"),
    (f"{DGX1V} --sizes 3", "--sizes 3 is too small: one element of float32 in every block is 4"),
    (
        "allgather --topology dgx-1v --sizes 16",
        "--sizes 16 is too small: one element of float32 in every block is 32 bytes",
    ),
    (f"{DGX1V} --root 1", "--root is for broadcast and reduce; allreduce has none"),
    ("reduce --topology dgx-1v --gpus 0,1 --root 5", "--root 5 is not among --gpus 0,1"),
    ("reduce --topology dgx-1v --root 8", "--root 8: dgx-1v has GPUs 0-7"),
    (
        f"{DGX1V} --links nvlink --gpus 0,1,6,7",
        "no path over NVLink between GPUs 0,1 and GPUs 6,7; --links all would join them\n",
    ),
    ("allreduce --topology pcie-8 --links nvlink", "pcie-8 has no NVLink; use --links pcie"),
    (f"{DGX1V} --links ib", "--links ib is unknown; known are nvlink, pcie, all"),
    (f"{DGX1V} --against rings", "--against rings is unknown; did you mean ring?"),
    (f"{DGX1V} --trees packt", "--trees packt is unknown; did you mean packed?"),
    (f"{DGX1V} --links nvlink --trees one-hop", "--trees one-hop: one-hop trees need a link"),
    (f"{DGX1V} --chunk 1", "--chunk 1: need at least 64 bytes, a cache line"),
    (f"{DGX1V} --chunk x", "--chunk: 'x' is no size"),
    (
        f"{DGX1V} --links nvlink --gpus 0,1 --sizes 1G --chunk 64",
        "--chunk 64: 1073741824 bytes are 16777216 chunks, more than 65536; take at least 16384",
    ),
    (f"{DGX1V} --channels 0", "--channels 0: need a whole number of at least 1"),
    (f"{DGX1V} --hosts 0", "--hosts 0: need a whole number of at least 1"),
    (f"{DGX1V} --hosts 2", "--hosts 2 needs --network-gbps, such as 100"),
    (
        f"{DGX1V} --hosts 2 --network-gbps 0",
        "--network-gbps 0: need Gbit/s, a number of at least 0.001 such as 100",
    ),
    (f"{DGX1V} --hosts 2 --network-gbps 1e3", "--network-gbps 1e3: need Gbit/s"),
    (f"{DGX1V} --hosts 2 --network-gbps 0.0001", "--network-gbps 0.0001: need Gbit/s"),
    (
        f"{DGX1V} --hosts 128 --network-gbps 100 --against ring",
        "--hosts 128: with more than 32 ranks (1024) one host is simulated for all, which goes for "
        "allreduce on equal hosts, not with --against ring",
    ),
    (
        "broadcast --topology dgx-1v --hosts 5 --network-gbps 100",
        "--hosts 5: with more than 32 ranks (40) one host is simulated for all, which goes for "
        "allreduce on equal hosts, not with broadcast",
    ),
    (f"{DGX1V} --network-gbps 40", "--network-gbps joins hosts; say with --hosts how many"),
    (f"{DGX1V} --gpus 0,1/2,3", "--gpus 0,1/2,3: GPUs of 2 hosts, --hosts is 1"),
    (
        f"{DGX1V} --gpus 0,1/2,3 --hosts 3 --network-gbps 40",
        "--gpus 0,1/2,3: GPUs of 2 hosts, --hosts is 3",
    ),
    (
        f"{DGX1V} --hosts 2 --network-gbps 40 --trees few",
        "--trees few does not go with --hosts: trees over hosts are packed",
    ),
    ("alltoall --topology dgx-1v --against ring", "--against: alltoall goes from each straight"),
    (
        "alltoall --topology dgx-1v --links nvlink",
        "alltoall needs a link between every two GPUs: 0 has none to 5-7; --links all may have",
    ),
    (f"{DGX1V} --plot a.gif", "--plot a.gif: the name must end in .svg, .png, .pdf"),
    (f"{DGX1V} --trace no/a.json", "--trace no/a.json: there is no folder no"),
    (f"{DGX1V} --trace .", "--trace .: that is a folder"),
    (f"{DGX1V} --nosuch", "unknown option --nosuch; see blinkrun simulate --help"),
    (f"{DGX1V} --size 1M", "unknown option --size; did you mean --sizes?"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[words for words, _ in WRONG])
def test_wrong_input_is_one_line_and_exit_code_2(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, words)
    assert (code, out) == (2, "")
    assert err.startswith(f"blinkrun: simulate: {said}")
    assert err.count("\n") == 1


def test_a_program_that_the_verifier_refuses(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever makes a program, it is not timed unless it is right."""
    from support.mutants import mutants

    from blinkrun.cli import simulate_search

    right = simulate_search.lower_packing

    def wrong(*args: Any, **kwargs: Any) -> Any:
        _, mutant = next(mutants(right(*args, **kwargs)))
        return mutant

    monkeypatch.setattr(simulate_search, "lower_packing", wrong)
    code, out, err = run(capsys, f"{DGX1V} --gpus 0,1,4 --links nvlink --sizes 1K")
    assert (code, out) == (2, "")
    assert err.startswith("blinkrun: simulate: ")
    assert err.count("\n") == 1


def test_a_trace_that_cannot_be_written(capsys: Captured, tmp_path: Path) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    words = f"{DGX1V} --gpus 0,1 --links nvlink --sizes 1K --trace {loop}"
    code, out, err = run(capsys, words)
    assert (code, out) == (2, "")
    assert err.startswith(f"blinkrun: simulate: --trace {loop}: ")


AT_WORK = """
import sys
from blinkrun.cli import simulating
from blinkrun.launcher.cli import main

work = simulating.simulate_all

def simulate_all(*args):
    print("at work", file=sys.stderr, flush=True)
    return work(*args)

simulating.simulate_all = simulate_all
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_ends_at_once_without_a_traceback() -> None:
    words = "simulate allreduce --topology dgx-1v --sizes 1G --chunk 32K --channels 8"
    with subprocess.Popen(
        [sys.executable, "-c", AT_WORK, *words.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            assert started.stderr is not None
            assert started.stderr.readline() == "at work\n"
            began_s = time.monotonic()
            started.send_signal(signal.SIGINT)
            out, err = started.communicate(timeout=30)
        finally:
            started.kill()
    assert (started.returncode, out, err) == (130, "", "")
    assert time.monotonic() - began_s < 5
