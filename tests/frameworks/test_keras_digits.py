"""The Keras example: its result, and that it does not depend on how many ranks share a batch."""

import os
import re
import subprocess
import sys

import pytest
from support.harness import RankRunner, mpiexec_command, rank_environ
from support.places import ROOT

pytest.importorskip("keras", reason="needs keras")
pytest.importorskip("sklearn", reason="needs scikit-learn")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

pytestmark = pytest.mark.timeout(460)  # two jobs, each on a busy machine


def environ(backend, plan_cache):
    pytest.importorskip(backend, reason=f"needs {backend}")
    return {
        "BLINKRUN_CACHE_DIR": str(plan_cache),
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


@pytest.fixture(scope="module")
def histories(tmp_path_factory, plan_cache):
    """Two epochs on so many ranks with joined batches of 24 images, as they are asked for."""
    known = {}

    def history(backend, size, hosts=None):
        if (backend, size, str(hosts)) not in known:
            runner = RankRunner(
                tmp_path_factory.mktemp("digits"), environ=environ(backend, plan_cache)
            )
            known[backend, size, str(hosts)] = runner(
                "keras_digits_program:history",
                size,
                timeout_s=200,
                hosts=hosts,
                joined_batch=24,
                joined_lr=0.02,
                epochs=2,
            )
        return known[backend, size, str(hosts)]

    return history


@pytest.mark.parametrize(
    ("backend", "size", "hosts"),
    [
        ("tensorflow", 2, [0, 1]),
        ("torch", 2, None),
        pytest.param("tensorflow", 3, None, marks=pytest.mark.slow),
        pytest.param("tensorflow", 4, [0, 0, 1, 1], marks=pytest.mark.slow),
    ],
)
def test_the_losses_of_n_ranks_are_those_of_one_on_the_joined_batch(
    histories, backend, size, hosts
):
    (alone,) = histories(backend, 1)
    shared = histories(backend, size, hosts)
    assert all(history == shared[0] for history in shared)
    # Without AVX-512 torch's sums differ in the last bit, and 30 steps later a tie of max pooling
    # goes the other way; TensorFlow's runs stay together.
    near, near_later = (3e-2, 0.15) if backend == "torch" else (1e-3, 1e-2)
    assert shared[0]["loss"] == pytest.approx(alone["loss"], rel=near)
    assert shared[0]["val_loss"] == pytest.approx(alone["val_loss"], rel=near_later)
    assert shared[0]["val_accuracy"] == pytest.approx(alone["val_accuracy"], abs=near + 0.01)
    assert alone["loss"][1] < alone["loss"][0] < 2.5


def test_it_ends_with_its_accuracy_and_speaks_once(tmp_path, plan_cache):
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
    last = re.fullmatch(r"test accuracy: (\d\.\d\d)", lines[-1])
    assert last, lines[-1]
    assert float(last[1]) > 0.95
    assert re.fullmatch(r"\d+ images/s on 2 ranks", lines[-2])
    assert (tmp_path / "best.keras").exists()
