"""The example: its result, and that it does not depend on how many ranks share a batch."""

import os
import re
import subprocess
import sys

import pytest
from support.harness import RankRunner
from support.places import ROOT

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("sklearn", reason="needs scikit-learn")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")


pytestmark = pytest.mark.timeout(620)  # the first test waits for the jobs of all


@pytest.fixture(scope="module")
def trained(tmp_path_factory, plan_cache):
    """Two epochs with joined batches of 24 images, on 1, on 2 and on 3 ranks, these on 2 hosts."""
    runner = RankRunner(
        tmp_path_factory.mktemp("digits"), environ={"BLINKRUN_CACHE_DIR": str(plan_cache)}
    )
    options = {"joined_batch": 24, "joined_lr": 0.02, "epochs": 2}
    hosts = {1: None, 2: None, 3: [0, 1, 0]}
    return {
        size: runner("torch_digits_cases:losses", size, timeout_s=200, hosts=hosts[size], **options)
        for size in hosts
    }


def test_all_ranks_report_the_same(trained):
    for reports in trained.values():
        assert all(report == reports[0] for report in reports)


@pytest.mark.parametrize("size", [2, 3])
def test_the_loss_curve_of_n_ranks_is_that_of_one_on_the_joined_batch(trained, size):
    alone, shared = trained[1][0], trained[size][0]
    assert shared["losses"] == pytest.approx(alone["losses"], rel=1e-3)
    assert alone["losses"][1] < alone["losses"][0] < 2.5
    assert shared["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)


def test_it_ends_with_its_accuracy_without_a_launcher(plan_cache):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "BLINKRUN_CACHE_DIR": str(plan_cache)}
    env |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp"}
    script = [sys.executable, str(ROOT / "examples" / "torch_digits.py"), "--epochs=6"]
    ran = subprocess.run(script, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    last = re.fullmatch(r"test accuracy: (\d\.\d\d)", lines[-1])
    assert last, lines[-1]
    assert float(last[1]) > 0.95
    assert re.fullmatch(r"\d+ images/s on 1 rank", lines[-2])
    assert "1 rank" in lines[0]  # the plan
