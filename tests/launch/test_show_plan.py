"""The plan that the launcher makes: shown, handed to the ranks, refused before any rank starts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.launching import launch
from support.places import TESTS

from blinkrun.errors import LaunchError
from blinkrun.launcher.cli import main
from blinkrun.launcher.forward import handed_files
from blinkrun.planner.make import make_plan
from blinkrun.topology.catalog import LinkSet, machine
from blinkrun.topology.graph import induce
from blinkrun.topology.machine import Gpu, Machine, PciKind, PciNode, Wire
from blinkrun.topology.serialize import machine_json

PLANNED = str(TESTS / "launch/cases/planned_program.py")
CASES = TESTS / "data/topologies"
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def environ(plan_cache: Path, tmp_path: Path) -> dict[str, str]:
    """Plans of this run only, and a folder of its own for temporary files."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return {"BLINKRUN_CACHE_DIR": str(plan_cache), "TMPDIR": str(temporary)}


def test_ranks_work_over_the_plan_that_is_shown(tmp_path: Path, environ: dict[str, str]) -> None:
    """GPUs 0, 1 and 4 of a DGX-1V: no NVLink joins 1 and 4."""
    options = ["--topology", "dgx-1v", "--gpus", "0,1,4", "--show-plan"]
    ended = launch(["-np", "3", *options, PLANNED], cwd=tmp_path, environ=environ)
    plan = make_plan(induce(machine("dgx-1v", LinkSet.ALL), (0, 1, 4)))
    shown = f"ranks 0 to 2 are GPUs 0 1 4 of dgx-1v\n{plan.describe()}\n"
    said = f"right, {len(plan.allreduce.trees)} trees of dgx-1v, folder 700"
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(shown)
    ranks = ended.out.removeprefix(shown)
    assert sorted(ranks.splitlines()) == [f"[{rank}] {said}" for rank in range(3)]
    assert not list((tmp_path / "tmp").glob("blinkrun-*"))  # the file is gone with the job


def test_a_file_is_planned_as_well_and_says_which_gpus(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    report = CASES / "dgx1-v100-4nic/input.txt"
    args = ["-np", "2", "--topology", str(report), PLANNED]
    ended = launch(args, cwd=tmp_path, environ=environ)
    assert ended.code == 0
    assert ended.err == (f"blinkrun: {report} has 8 GPUs: planned for 0,1 (--gpus names others)\n")
    assert ended.out.count("right, ") == 2
    assert "cpu host" not in ended.out


def test_without_a_machine_the_plan_of_the_processors_is_shown(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    ended = launch(["-np", "2", "--show-plan", PLANNED], cwd=tmp_path, environ=environ)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("cpu host, ")
    assert ended.out.count("right, ") == 2


def test_one_rank_has_nothing_to_move(
    capsys: Captured, plan_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(plan_cache))
    assert main(["-np", "1", "--topology", "dgx-1v", "--show-plan", "--dry-run", "true"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("rank 0 is GPU 0 of dgx-1v\ndgx-1v: 1 rank, nothing to move\n")
    assert captured.err == "blinkrun: dgx-1v has 8 GPUs: planned for 0 (--gpus names others)\n"


def test_a_job_that_fails_leaves_no_file(tmp_path: Path, environ: dict[str, str]) -> None:
    args = ["-np", "2", "--topology", "dgx-1v", "python", "-c", "raise SystemExit(3)"]
    ended = launch(args, cwd=tmp_path, environ=environ)
    assert ended.code == 3
    assert not list((tmp_path / "tmp").glob("blinkrun-*"))


def test_a_job_inside_does_not_take_the_plan_of_the_outer(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    inner = [sys.executable, "-m", "blinkrun", "-np", "2", PLANNED]
    args = ["-np", "1", "--topology", "dgx-1v", *inner]
    ended = launch(args, cwd=tmp_path, environ=environ)
    assert ended.code == 0
    assert ended.out.count("of cpu host") == 2


def test_ranks_refuse_a_plan_for_another_number(tmp_path: Path, environ: dict[str, str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(make_plan(machine("dgx-1p")).to_json())
    args = ["-np", "2", "-x", f"BLINKRUN_PLAN={path}", PLANNED]
    ended = launch(args, cwd=tmp_path, environ=environ)
    assert ended.code == 1
    problem = f"BLINKRUN_PLAN={path}: a plan for 8 ranks, but the job has 2"
    assert f"LaunchError: {problem}" in ended.err


def test_a_dry_run_shows_the_plan_and_hands_it_to_nobody(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    args = ["-np", "2", "--topology", "dgx-1v", "--gpus", "0,3", "--show-plan", "--dry-run", "true"]
    ended = launch(args, cwd=tmp_path, environ=environ)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("ranks 0 to 1 are GPUs 0 3 of dgx-1v\n")
    assert "BLINKRUN_PLAN" in ended.out.splitlines()[-1]
    assert not list((tmp_path / "tmp").iterdir())


def two_hosts() -> str:
    """Three GPUs of two hosts, as a file that joins them may have it."""
    cpus = [PciNode(PciKind.CPU, "cpu 0", host=host) for host in ("anna", "bert")]
    gpus = [PciNode(PciKind.GPU, f"0000:0{at}:00.0", at // 2 * 3, gpus=(at,)) for at in range(3)]
    found = Machine(
        "apart",
        "by hand",
        tuple(Gpu(f"GPU{at}") for at in range(3)),
        nvlink=(Wire(0, 1, 2),),
        pcie=None,
        tree=(cpus[0], *gpus[:2], cpus[1], gpus[2]),
    )
    return json.dumps(machine_json(found))


BROKEN = "\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNVx\t X \n"
REFUSED = [
    ("--topology broken.txt", "broken.txt:3: "),
    ("--topology dgx-1w", "no machine 'dgx-1w' in the catalog; "),
    ("--topology dgx-1w", "dgx-1v"),
    ("--topology no/such/file", "no/such/file: cannot be read: No such file or directory"),
    ("--topology -", "--topology -: the ranks read standard input; write the report to a file"),
    ("--topology dgx-1v --gpus 0,1", "--gpus 0,1: 2 GPUs for 3 ranks (-np)"),
    ("--topology dgx-1v --gpus 0,1,9", "--gpus 0,1,9: dgx-1v has no GPU 9, only 0 to 7"),
    ("--topology dgx-1v --gpus 0,1,1", "--gpus 0,1,1: GPU 1 is named twice"),
    ("--topology dgx-1v --gpus a", "--gpus a: 'a' is no GPU number; write it as 0,1,4 or 0-3"),
    ("--topology two.txt", "-np 3: two.txt has only 2 GPUs, one for each rank"),
    ("--gpus 0,1,2", "--gpus says which GPUs of --topology FILE|NAME; give that too"),
    ("--topology apart.json", "apart.json: no path over any link between GPU 0,1 and GPU 2"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_cannot_be_planned_is_one_line_and_no_job(
    capsys: Captured,
    tmp_path: Path,
    plan_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    said: str,
) -> None:
    """The MPI that is named does not exist: a job would say so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(plan_cache))
    Path("broken.txt").write_text(BROKEN)
    Path("two.txt").write_text(BROKEN.replace("NVx", "NV2"))
    Path("apart.json").write_text(two_hosts())
    assert main(["-np", "3", "--mpi", "/no/mpi", *options.split(), "true"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("blinkrun: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_cache_folder_that_is_named_must_be_usable(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path / "file"))
    assert main(["-np", "3", "--topology", "dgx-1v", "true"]) == 2
    assert capsys.readouterr().err == (
        f"blinkrun: plan cache {tmp_path}/file/plans: Not a directory;"
        " set BLINKRUN_CACHE_DIR to a folder that can be written\n"
    )


def test_a_job_goes_on_without_its_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {"BLINKRUN_CACHE_DIR": str(tmp_path / "file")}
    ended = launch(["-np", "2", PLANNED], cwd=tmp_path, environ=environ)
    assert ended.code == 0
    assert ended.err.count("\n") == 1
    assert "plans are not kept (BLINKRUN_CACHE_DIR names another folder)" in ended.err


def test_a_plan_that_cannot_be_written_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with (
        pytest.raises(LaunchError, match="the plan cannot be handed to the ranks: "),
        handed_files({"BLINKRUN_PLAN": "{}"}),
    ):
        pass


def test_texts_are_in_files_of_this_user_alone_while_the_job_runs() -> None:
    with handed_files({"BLINKRUN_PLAN": "{}", "BLINKRUN_EMULATION": "job"}) as added:
        paths = {name: Path(path) for name, path in added.items()}
        assert {name: path.read_text() for name, path in paths.items()} == {
            "BLINKRUN_PLAN": "{}",
            "BLINKRUN_EMULATION": "job",
        }
        assert {path.parent.stat().st_mode & 0o777 for path in paths.values()} == {0o700}
    assert not any(path.exists() for path in paths.values())


def test_without_a_text_there_is_no_file() -> None:
    with handed_files({}) as added:
        assert added == {}
    assert "BLINKRUN_PLAN" not in os.environ
