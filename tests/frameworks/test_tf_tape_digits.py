"""The example of a loop with a tape: its result, and that the ranks share one process's batch."""

import os
import re
import subprocess
import sys

import pytest
from support.harness import RankRunner
from support.places import ROOT

pytest.importorskip("tensorflow", reason="needs tensorflow")
pytest.importorskip("sklearn", reason="needs scikit-learn")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # TensorFlow starts eight times


@pytest.fixture(scope="module")
def trained(tmp_path_factory, plan_cache):
    """Two epochs on 1, 2 and 3 ranks, with joined batches of 24 images."""
    environ = {"BLINKRUN_CACHE_DIR": str(plan_cache), "TF_CPP_MIN_LOG_LEVEL": "2"}
    runner = RankRunner(tmp_path_factory.mktemp("digits"), environ=environ)
    options = {"joined_batch": 24, "joined_lr": 0.02, "epochs": 2}
    return {
        size: runner("tf_digits_program:losses", size, timeout_s=110, **options)
        for size in (1, 2, 3)
    }


def test_all_ranks_of_a_loop_end_with_the_same_weights(trained):
    for reports in trained.values():
        assert all(report == reports[0] for report in reports)


@pytest.mark.parametrize("size", [2, 3])
def test_the_losses_of_n_ranks_are_those_of_one_on_the_joined_batch(trained, size):
    alone, shared = trained[1][0], trained[size][0]
    assert shared["losses"] == pytest.approx(alone["losses"], rel=1e-3)
    assert alone["losses"][1] < alone["losses"][0] < 2.5
    assert shared["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)


def test_two_ranks_of_the_launcher_end_with_their_accuracy(plan_cache):
    env = {**os.environ, "BLINKRUN_CACHE_DIR": str(plan_cache), "BLINKRUN_TIMEOUT_S": "90"}
    script = str(ROOT / "examples" / "tf_tape_digits.py")
    command = [sys.executable, "-m", "blinkrun", "-np", "2", script]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = [line.removeprefix("[0] ") for line in ran.stdout.splitlines()]
    assert float(re.fullmatch(r"test accuracy: (\d\.\d\d)", lines[-1])[1]) > 0.95
    assert re.fullmatch(r"\d+ images/s on 2 ranks", lines[-2])
    assert "2 ranks" in lines[0]  # the plan
    epochs = [line for line in lines if re.fullmatch(r"epoch +\d+: loss \d\.\d{4}", line)]
    assert lines[-12:-2] == epochs
