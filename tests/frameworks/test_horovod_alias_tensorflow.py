"""Unchanged scripts that import horovod.tensorflow and horovod.keras, under `--horovod`."""

import re

import pytest
from support.launching import launch
from support.needs import need
from support.places import TESTS

need("tensorflow")
pytest.importorskip("sklearn", reason="needs scikit-learn")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

CASES = TESTS / "frameworks/cases"
DATA = TESTS / "data/horovod"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}


def run(words, tmp_path, plan_cache, **environ):
    environ = {"BLINKRUN_CACHE_DIR": str(plan_cache), **QUIET, **environ}
    words = ["--timeout", "100", "--no-prefix", *map(str, words)]
    ended = launch(words, cwd=tmp_path, environ=environ)
    assert ended.code == 0, ended.out + ended.err
    return ended


def test_unchanged_scripts_learn_by_a_tape_and_by_keras(tmp_path, plan_cache):
    words = ["-np", 3, "--horovod", CASES / "horovod_tensorflow_digits.py", "--fp16-allreduce"]
    out = run(words, tmp_path, plan_cache).out
    found = dict(re.findall(r"(\w+): accuracy (0\.\d+), ranks agree: True", out))
    assert found.keys() == {"tape", "keras"}, out
    assert min(map(float, found.values())) > 0.85


def test_names_signatures_errors_and_absences_are_those_of_the_interface(tmp_path, plan_cache):
    words = ["-np", "2", "--horovod", CASES / "horovod_tensorflow_calls.py", DATA]
    out = run(words, tmp_path, plan_cache).out
    assert sorted(out.splitlines()) == [f"rank {rank} of 2: ok" for rank in range(2)]
