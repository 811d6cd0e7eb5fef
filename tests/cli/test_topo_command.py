"""`blinkrun topo`: what it prints, for whom, and what it says of wrong input."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.corpus import FOLDER, case, case_names
from support.golden import check_golden

from blinkrun.cli import topo_options
from blinkrun.launcher.cli import main
from blinkrun.topology import probe
from blinkrun.topology.catalog import described, machines
from blinkrun.topology.probe import probe_host
from blinkrun.topology.read import read_machine
from blinkrun.topology.serialize import machine_json

Captured = pytest.CaptureFixture[str]
PLAIN = ("gpu_names", "nics", "nvlink", "pcie", "xgmi")


def run(capsys: Captured, words: str) -> tuple[int, str, str]:
    code = main(words.split())
    out, err = capsys.readouterr()
    return code, out, err


def test_the_options_are_frozen() -> None:
    """Scripts rely on these: an option may be added here, none may go or change its meaning."""
    assert set(topo_options.make_parser().options) == {
        *("--json", "--xml", "--plot", "--partial", "--report", "--bandwidths", "--list"),
        "--ranks",
        *("--help", "-h"),
    }


@pytest.mark.parametrize("command", ["topo", "plan"])
def test_help_fits_a_screen_and_ends_with_an_example(capsys: Captured, command: str) -> None:
    code, text, err = run(capsys, f"{command} --help")
    lines = text.splitlines()
    assert (code, err) == (0, "")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert lines[-1].lstrip().startswith(f"blinkrun {command} ")
    check_golden(f"cli/{command}_help.txt", text)


@pytest.mark.parametrize("command", ["topo", "plan"])
def test_help_is_fast_and_loads_no_library(command: str) -> None:
    code = (
        f"import sys; from blinkrun.launcher.cli import main; main([{command!r}, '--help'])\n"
        "heavy = {'numpy', 'mpi4py', 'torch', 'scipy', 'networkx', 'matplotlib', 'subprocess'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    started_s = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert time.monotonic() - started_s < 2  # 0.15 s on a quiet machine


@pytest.mark.parametrize("name", ["dgx-1v", "dgx-2"])
def test_a_machine_of_the_catalog(capsys: Captured, name: str) -> None:
    code, text, err = run(capsys, f"topo {name}")
    assert (code, err) == (0, "")
    check_golden(f"cli/topo_{name}.txt", text)


def test_which_gpus_ranks_take(capsys: Captured) -> None:
    code, text, _ = run(capsys, "topo dgx-1v --ranks 3")
    assert code == 0
    assert text.endswith("ranks        0 to 2 of a host take GPUs 0 2 3, in this order\n")
    code, text, _ = run(capsys, "topo dgx-1v --ranks 1 --json")
    assert (code, json.loads(text)["ranks"]) == (0, [0])
    assert "ranks" not in json.loads(run(capsys, "topo dgx-1v --json")[1])


def test_ranks_on_this_machine_take_the_gpus_that_are_seen(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (described("dgx-1v"), probe_host())
    monkeypatch.setattr(probe, "probe_here", lambda: found)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3,0")
    _, text, _ = run(capsys, "topo")
    assert text.endswith("ranks        0 to 2 of a host take GPUs 5 3 0, in this order\n")
    _, text, _ = run(capsys, "topo --ranks 2")
    assert text.endswith("ranks        0 to 1 of a host take GPUs 3 0, in this order\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert run(capsys, "topo")[1].endswith("ranks        rank 0 takes GPU 5\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("dgx-1v --ranks 9", "--ranks 9: dgx-1v has GPUs 0-7"),
        ("dgx-1v --ranks 0", "--ranks 0: need a whole number of at least 1"),
        ("dgx-1v --ranks 2 --xml", "--ranks and --xml exclude each other"),
    ],
)
def test_ranks_that_cannot_be(capsys: Captured, words: str, said: str) -> None:
    assert run(capsys, f"topo {words}") == (2, "", f"blinkrun: topo: {said}\n")


def test_a_pasted_report(capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "power9-ac922-v100-4"
    (tmp_path / "report.txt").write_text(case(name).text)
    monkeypatch.chdir(tmp_path)
    code, text, _ = run(capsys, "topo report.txt")
    assert code == 0
    check_golden(f"cli/topo_{name}.txt", text)


def test_notes_go_to_stderr(capsys: Captured) -> None:
    noted = FOLDER / "azure-ncv4-a100-4-self-links" / "input.xml"
    code, out, err = run(capsys, f"topo {noted}")
    assert code == 0
    assert all(line.startswith("blinkrun: note: ") for line in err.splitlines())
    assert err
    assert "note" not in out


@pytest.mark.parametrize("name", case_names())
def test_json_has_the_facts_as_they_are_stated(capsys: Captured, name: str) -> None:
    told = case(name)
    partial = "" if told.outcome == "parse" else " --partial"
    file = next((FOLDER / name).glob("input.*"))
    code, out, _ = run(capsys, f"topo {file} --json{partial}")
    got = json.loads(out)
    assert code == 0
    assert {key: got[key] for key in PLAIN if key in told.expected} == {
        key: told.expected[key] for key in PLAIN if key in told.expected
    }


@pytest.mark.parametrize("form", ["json", "xml"])
@pytest.mark.parametrize("name", ["dgx-1v", "dgx-2", "mi300x-8", "pcie-8"])
def test_what_is_printed_is_read_again(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    _, out, _ = run(capsys, f"topo {name} --{form}")
    _, first, _ = run(capsys, f"topo {name} --json")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(out.encode())))
    code, again, _ = run(capsys, "topo - --json")
    one, other = json.loads(first), json.loads(again)
    assert code == 0
    assert one["fingerprint"] == other["fingerprint"]
    assert {key: one[key] for key in ("nvlink", "xgmi")} == {
        key: other[key] for key in ("nvlink", "xgmi")
    }


def test_the_fingerprint_does_not_depend_on_the_numbering(capsys: Captured, tmp_path: Path) -> None:
    machine = read_machine(case("dgx1-v100-4nic").text)
    told = machine_json(machine)
    order = [5, 0, 3, 7, 1, 6, 2, 4]  # the new number of each GPU
    turned = {"gpu_names": told["gpu_names"], "nics": []}
    turned["nvlink"] = sorted(
        [*sorted((order[a], order[b])), lanes] for a, b, lanes in told["nvlink"]
    )
    turned["pcie"] = {}
    for pair, level in told["pcie"].items():
        low, high = sorted(order[int(gpu)] for gpu in pair.split("-"))
        turned["pcie"][f"{low}-{high}"] = level
    plain = {"gpu_names": told["gpu_names"], "nics": [], "nvlink": told["nvlink"]}
    plain["pcie"] = told["pcie"]
    found = []
    for number, value in enumerate((plain, turned)):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(value))
        found.append(json.loads(run(capsys, f"topo {file} --json")[1])["fingerprint"])
    assert found[0] == found[1]
    assert len(found[0]) == 16


def test_the_list_has_every_name(capsys: Captured) -> None:
    code, out, err = run(capsys, "topo --list")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(machines())


def test_a_file_goes_before_a_name_of_the_catalog(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dgx-2").write_text(case("titanrtx-2-nv2").text)
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "topo dgx-2")
    assert code == 0
    assert "NV2" in out
    assert "'dgx-2' is read from the file here, not from the catalog" in err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
def test_files_in_any_encoding(capsys: Captured, tmp_path: Path, encoding: str) -> None:
    """PowerShell writes UTF-16, other editors a byte order mark."""
    file = tmp_path / "report"
    file.write_text(case("titanrtx-2-nv2").text, encoding=encoding)
    code, out, _ = run(capsys, f"topo {file}")
    assert code == 0
    assert "NV2" in out


def test_without_gpus_the_processors_are_shown(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blinkrun.topology.probe.probe_here", lambda: (None, probe_host()))
    code, out, _ = run(capsys, "topo")
    assert (code, out) == (0, f"no GPU here; {probe_host().describe()}\n")
    code, out, _ = run(capsys, "topo --json")
    assert code == 0
    assert json.loads(out)["gpu_names"] == []
    for option in ("--xml", "--plot=x.svg"):
        code, _, err = run(capsys, f"topo {option}")
        assert code == 2
        assert "there is none here" in err


def test_this_machine(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = read_machine(case("titanrtx-2-nv2").text)
    monkeypatch.setattr("blinkrun.topology.probe.probe_here", lambda: (pair, probe_host()))
    code, out, _ = run(capsys, "topo --json")
    assert code == 0
    assert json.loads(out)["nvlink"] == [[0, 1, 2]]


def test_a_report_that_tells_no_pairs_has_no_fingerprint(capsys: Captured) -> None:
    file = FOLDER / "a100-nvlink-status-ellipsis" / "input.txt"
    code, out, _ = run(capsys, f"topo {file} --json")
    assert code == 0
    assert json.loads(out)["fingerprint"] is None
    assert "none, as links are not stated" in run(capsys, f"topo {file}")[1]


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_pictures_are_the_same_bytes_each_time(
    capsys: Captured, tmp_path: Path, suffix: str
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    files = [tmp_path / f"{number}.{suffix}" for number in range(2)]
    for file in files:
        assert run(capsys, f"topo titan-rtx-2 --plot {file}")[0] == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].stat().st_size > 5000


BROKEN = FOLDER / "dgx2-16-rows-missing" / "input.txt"
WRONG = [
    ("topo dgx-1w", "topo: no machine 'dgx-1w' in the catalog; near are dgx-1v, "),
    ("topo ./nothing", "topo: ./nothing: cannot be read: No such file or directory"),
    ("topo .", "topo: no machine '.' in the catalog"),
    ("topo ./", "topo: ./: cannot be read: Is a directory"),
    (f"topo {BROKEN}", f"{BROKEN}:6: rows GPU5..GPU15 are missing"),
    ("topo dgx-1v --report 0", "topo: --report 0: need a whole number of at least 1"),
    ("topo dgx-1v --report 2", "topo: --report is for files, 'dgx-1v' is none"),
    ("topo dgx-1v --partial", "topo: --partial is for files, 'dgx-1v' is none"),
    ("topo --partial", "topo: --partial is for files, none is given"),
    ("topo dgx-1v --json --xml", "topo: --json and --xml exclude each other"),
    ("topo dgx-1v --list", "topo: --list takes no machine, 'dgx-1v' is given"),
    ("topo dgx-1v dgx-2", "topo: 'dgx-2' is a word too many; see blinkrun topo --help"),
    ("topo dgx-1v --jsn", "topo: unknown option --jsn; did you mean --json?"),
    ("topo dgx-1v --frobnicate", "topo: unknown option --frobnicate; see blinkrun topo --help"),
    ("topo dgx-1v --json=x", "topo: --json takes no value; see blinkrun topo --help"),
    ("topo --plot", "topo: --plot needs a value; see blinkrun topo --help"),
    ("topo dgx-1v --plot a.gif", "topo: --plot a.gif: the name must end in .svg, .png, .pdf"),
    ("topo dgx-1v --plot no/a.svg", "topo: --plot no/a.svg: there is no folder no"),
    ("topo dgx-1v --bandwidths no", "topo: no: cannot be read: No such file or directory"),
    ("topo - --bandwidths -", "topo: --bandwidths -: standard input holds the machine already"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[words for words, _ in WRONG])
def test_wrong_input_is_one_line_and_exit_code_2(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, words)
    assert (code, out) == (2, "")
    assert err.startswith(f"blinkrun: {said}")
    assert err.count("\n") == 1


def test_a_picture_needs_matplotlib(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = run(capsys, "topo dgx-1v --plot x.svg")
    assert code == 2
    assert err == "blinkrun: topo: --plot needs matplotlib: pip install 'blinkrun[plot]'\n"


def test_a_huge_file_is_refused(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("blinkrun.cli.source.LARGEST_BYTES", 1 << 20)
    (tmp_path / "huge").write_bytes(b"x" * ((1 << 20) + 1))
    code, _, err = run(capsys, f"topo {tmp_path / 'huge'}")
    assert code == 2
    assert err.endswith("huge: more than 1 MiB, that is no report\n")


def test_a_reader_that_leaves_is_no_error() -> None:
    """As `| head -1` does."""
    ran = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m blinkrun topo --list | true; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    assert ran.returncode in (0, 141)  # by whether it had written before the reader left
