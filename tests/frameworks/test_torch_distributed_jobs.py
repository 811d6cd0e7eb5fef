"""``blinkrun --ddp`` and torchrun with scripts for torch.distributed: how jobs run and end."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.launching import launch
from support.places import ROOT, TESTS

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

pytestmark = pytest.mark.timeout(320)  # two jobs, on a busy machine

PROGRAM = str(TESTS / "frameworks/cases/torch_ddp_program.py")


def ddp(tmp_path, plan_cache, *case, size=2):
    environ = {"BLINKRUN_CACHE_DIR": str(plan_cache)}
    return launch(["-np", str(size), "--ddp", PROGRAM, *case], cwd=tmp_path, environ=environ)


def said(ended):
    """The lines of the ranks, without their numbers."""
    return [re.sub(r"^\[\d+\] ", "", line) for line in ended.out.splitlines()]


def test_ranks_are_told_what_torchrun_tells_and_get_blink_whatever_they_ask_for(
    tmp_path, plan_cache
):
    ended = ddp(tmp_path, plan_cache, "backends", size=3)
    assert ended.code == 0, ended.err
    told = sorted(line for line in said(ended) if line.startswith("told"))
    assert told == [f"told {rank} 3 {rank} 3 0 {rank}" for rank in range(3)]
    ours = "BlinkProcessGroup blink"
    names = ("None", "gloo", "nccl", "cpu:gloo,cuda:nccl", "mpi", "blink")
    of_first = [line for line in said(ended) if not line.startswith("told")]
    assert of_first == ["elastic True 0", *(f"{name} {ours} 3.0 {ours}" for name in names)]


def test_scripts_train_alike_under_blinkrun_and_under_torchrun_over_gloo(tmp_path, plan_cache):
    """Under torchrun the script asks for blink, which the import makes known there."""
    ended = ddp(tmp_path, plan_cache, "train", "nccl")
    assert ended.code == 0, ended.err
    script = "import blinkrun.torch.distributed\n" + Path(PROGRAM).read_text()
    (tmp_path / "train.py").write_text(script)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with subprocess.Popen(
        [*torchrun, "--nproc-per-node", "2", str(tmp_path / "train.py"), "train", "gloo", "blink"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "BLINKRUN_CACHE_DIR": str(plan_cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as ran:
        try:
            out, err = ran.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            ran.terminate()  # it ends its workers; killed, it would leave them
            raise
    assert ran.returncode == 0, err
    found = dict(line.split() for line in out.splitlines())
    backend, unchanged = said(ended)[-1].split()
    assert backend == "blink"
    assert found["blink"] == unchanged
    assert float(unchanged) == pytest.approx(float(found["gloo"]), rel=1e-6)


FAILURES = {
    "raises": ("rank 1", "ValueError: boom"),
    "late": ("rank 1", "kept others waiting", "waited 2 s", "give init_process_group a longer"),
    "left": ("rank 1", "exited early"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_job_that_fails_ends_and_names_its_cause(tmp_path, plan_cache, case):
    ended = ddp(tmp_path, plan_cache, case)
    assert ended.code != 0
    for words in FAILURES[case]:
        assert words in ended.last_words, ended.last_words


def test_a_script_that_leaves_calls_under_way_ends_well(tmp_path, plan_cache):
    ended = ddp(tmp_path, plan_cache, "unwaited", size=3)
    assert ended.code == 0, ended.err
    assert "ends" in said(ended)


def test_the_example_reaches_its_accuracy(tmp_path, plan_cache):
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    example = str(ROOT / "examples" / "ddp_digits.py")
    ended = launch(
        ["-np", "2", "--ddp", example, "--epochs", "5"],
        cwd=tmp_path,
        environ={"BLINKRUN_CACHE_DIR": str(plan_cache)},
    )
    assert ended.code == 0, ended.err
    last = re.fullmatch(r"test accuracy: (\d\.\d\d)", said(ended)[-1])
    assert last, ended.out
    assert float(last[1]) > 0.9
