"""The examples for TensorFlow, with Keras' fit and with a tape.

Their results, and that those do not depend on how many ranks share a batch.
"""

import os
import re
import subprocess
import sys

import pytest
from support.harness import RankRunner, mpiexec_command, rank_environ
from support.needs import need
from support.places import ROOT

need("keras")
pytest.importorskip("sklearn", reason="needs scikit-learn")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

pytestmark = pytest.mark.timeout(460)  # two jobs, each on a busy machine

JOINED = {"joined_batch": 24, "joined_lr": 0.02, "epochs": 2}


def environ(backend, plan_cache):
    need(backend)
    return {
        "BLINKRUN_CACHE_DIR": str(plan_cache),
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def trained(tmp_path_factory, plan_cache, backend, size, hosts=None):
    """What each rank tells of both examples, or under torch of the only one that there is."""
    case = "tf_digits_program:both" if backend == "tensorflow" else "keras_digits_program:history"
    runner = RankRunner(tmp_path_factory.mktemp("digits"), environ=environ(backend, plan_cache))
    return runner(case, size, timeout_s=200, hosts=hosts, **JOINED)


@pytest.fixture(scope="module")
def on_tensorflow(tmp_path_factory, plan_cache):
    """Two epochs with joined batches of 24 images: one rank's, and those of 3 ranks on 2 hosts."""
    (alone,) = trained(tmp_path_factory, plan_cache, "tensorflow", 1)
    return alone, trained(tmp_path_factory, plan_cache, "tensorflow", 3, [0, 1, 0])


def check_histories(alone, shared, near, near_later):
    """Keras' histories of ranks are alike, and near that of one."""
    assert all(history == shared[0] for history in shared)
    assert shared[0]["loss"] == pytest.approx(alone["loss"], rel=near)
    assert shared[0]["val_loss"] == pytest.approx(alone["val_loss"], rel=near_later)
    assert shared[0]["val_accuracy"] == pytest.approx(alone["val_accuracy"], abs=near + 0.01)
    assert alone["loss"][1] < alone["loss"][0] < 2.5


def test_fit_on_n_ranks_has_the_losses_of_one_on_the_joined_batch(on_tensorflow):
    alone, shared = on_tensorflow
    check_histories(alone["fit"], [rank["fit"] for rank in shared], 1e-3, 1e-2)


def test_a_tape_on_n_ranks_has_the_losses_of_one_on_the_joined_batch(on_tensorflow):
    alone, shared = on_tensorflow[0]["tape"], [rank["tape"] for rank in on_tensorflow[1]]
    assert all(report == shared[0] for report in shared)  # weights as well, bit by bit
    assert shared[0]["losses"] == pytest.approx(alone["losses"], rel=1e-3)
    assert alone["losses"][1] < alone["losses"][0] < 2.5
    assert shared[0]["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)


def test_fit_on_torch_has_the_losses_of_one_on_the_joined_batch(tmp_path_factory, plan_cache):
    (alone,) = trained(tmp_path_factory, plan_cache, "torch", 1)
    shared = trained(tmp_path_factory, plan_cache, "torch", 2)
    # Without AVX-512 torch's sums differ in the last bit, and 30 steps later a tie of max pooling
    # goes the other way; TensorFlow's runs stay together.
    check_histories(alone, shared, 3e-2, 0.15)


def test_fit_ends_with_its_accuracy_and_speaks_once(tmp_path, plan_cache):
    script = ROOT / "examples" / "keras_digits.py"
    ran = subprocess.run(
        [*mpiexec_command(2), sys.executable, str(script), "--epochs=6", "--save=best.keras"],
        env={**os.environ, **rank_environ(110), **environ("tensorflow", plan_cache)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines.count("Epoch 6/6") == 1
    assert accuracy_of(lines) > 0.95
    assert (tmp_path / "best.keras").exists()


def accuracy_of(lines):
    """What the last line says, below one that is about the speed."""
    assert re.fullmatch(r"\d+ images/s on 2 ranks", lines[-2])
    return float(re.fullmatch(r"test accuracy: (\d\.\d\d)", lines[-1])[1])


def test_a_tape_ends_with_its_accuracy(plan_cache):
    env = {**os.environ, "BLINKRUN_CACHE_DIR": str(plan_cache), "BLINKRUN_TIMEOUT_S": "90"}
    script = str(ROOT / "examples" / "tf_tape_digits.py")
    command = [sys.executable, "-m", "blinkrun", "-np", "2", script, "--epochs=6"]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = [line.removeprefix("[0] ") for line in ran.stdout.splitlines()]
    assert accuracy_of(lines) > 0.95
    assert "2 ranks" in lines[0]  # the plan
    epochs = [line for line in lines if re.fullmatch(r"epoch +\d+: loss \d\.\d{4}", line)]
    assert lines[-8:-2] == epochs
