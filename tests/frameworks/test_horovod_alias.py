"""Scripts that import horovod, unchanged, under `blinkrun --horovod`."""

import json
import re

import pytest
from support.launching import launch
from support.places import TESTS

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("sklearn", reason="needs scikit-learn")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

CASES = TESTS / "frameworks/cases"
NAMES = TESTS / "data/horovod/torch_names.txt"
VERSION = "import horovod; print(horovod.__version__)"


def run(words, tmp_path, plan_cache):
    """Run a job to its end, as a user does; it is over after a minute in any case."""
    environ = {"BLINKRUN_CACHE_DIR": str(plan_cache)}
    ended = launch(
        ["--timeout", "50", "--no-prefix", *map(str, words)], cwd=tmp_path, environ=environ
    )
    assert ended.code == 0, ended.out + ended.err
    return ended


def test_an_unchanged_script_learns_and_shows_its_timeline(tmp_path, plan_cache):
    """It trains twice: as it comes, and with compression and a factor before the sum."""
    trace = tmp_path / "trace.json"
    words = ["-np", "2", "--horovod", "--timeline", trace, CASES / "horovod_digits.py"]
    out = run(words, tmp_path, plan_cache).out
    found = re.findall(r"accuracy (0\.\d+), ranks agree: True", out)
    assert len(found) == 2, out
    assert min(map(float, found)) > 0.85
    json.loads(trace.read_text())
    assert "avg_accuracy" in trace.read_text()


def test_errors_sets_join_timeline_and_absent_names(tmp_path, plan_cache):
    words = ["-np", "3", "--horovod", CASES / "horovod_calls.py", NAMES, tmp_path / "timeline"]
    out = run(words, tmp_path, plan_cache).out
    assert sorted(out.splitlines()) == [f"rank {rank} of 3: ok" for rank in range(3)]


def test_it_goes_before_a_horovod_that_is_installed_in_its_own_job_only(tmp_path, plan_cache):
    package = tmp_path / "site/horovod"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "real"\n')
    words = ["-np", "1", "-x", f"PYTHONPATH={package.parent}"]
    ask = ["python", "-c", VERSION]
    assert run([*words, *ask], tmp_path, plan_cache).out == "real\n"
    assert "+blinkrun." in run([*words, "--horovod", *ask], tmp_path, plan_cache).out
