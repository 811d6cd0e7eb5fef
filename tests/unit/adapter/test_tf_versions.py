"""What is said where TensorFlow or Keras is missing or too old, without importing them."""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("needs tensorflow", allow_module_level=True)

from blinkrun.tf import versions


@pytest.fixture
def machine(monkeypatch):
    """Pretend that only these distributions are installed, and nothing is imported."""
    installed = {}

    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    def find_spec(module):
        names = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "unknown")}
        there = any(name in installed for name in names.get(module, (module,)))
        return SimpleNamespace(origin=f"/site/{module}/__init__.py") if there else None

    for module in ("tensorflow", "keras", "tf_keras"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    for name in ("KERAS_BACKEND", "KERAS_HOME", "TF_USE_LEGACY_KERAS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return installed


def test_a_missing_tensorflow_is_named_with_what_to_install(machine):
    with pytest.raises(ImportError) as caught:
        versions.check_tensorflow()
    assert str(caught.value) == (
        "blinkrun.tf needs TensorFlow 2.16 or newer, which is not installed; "
        "pip install 'tensorflow>=2.16'"
    )
    assert caught.value.name == "tensorflow"


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu", "tf-nightly"])
def test_a_tensorflow_that_is_too_old_is_named_with_its_version(machine, name):
    machine[name] = "2.15.1"
    with pytest.raises(ImportError, match=r"needs TensorFlow 2.16 or newer, 2.15.1 is installed; "):
        versions.check_tensorflow()


@pytest.mark.parametrize("version", ["2.16.0", "2.21.0", "2.22.0-dev20260101", "3.0rc1"])
def test_newer_ones_pass(machine, version):
    machine["tensorflow-cpu"] = version
    versions.check_tensorflow()


def test_one_whose_version_nobody_knows_passes(machine):
    machine["unknown"] = "?"
    versions.check_tensorflow()


def test_keras_is_asked_for_at_version_3(machine):
    with pytest.raises(ImportError, match=r"blinkrun.tf.keras needs Keras 3.0 .*'keras>=3.0'"):
        versions.check_keras()
    machine["keras"] = "2.15.0"
    with pytest.raises(ImportError, match=r"Keras 3.0 or newer, 2.15.0 is installed"):
        versions.check_keras()
    machine["keras"] = "3.15.1"
    versions.check_keras()


@pytest.mark.parametrize("value", ["1", "true", "True"])
def test_the_legacy_keras_is_asked_for_where_tensorflow_would_take_it(machine, monkeypatch, value):
    machine["keras"] = "3.15.1"
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", value)
    with pytest.raises(ImportError, match=r"needs tf_keras 2.16 .*pip install 'tf-keras>=2.16'"):
        versions.check_keras()
    machine["tf_keras"] = "2.21.0"
    versions.check_keras()


def test_the_backend_is_found_where_keras_looks_for_it(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert versions.keras_backend() == "tensorflow"
    (tmp_path / "keras.json").write_text("no JSON")
    assert versions.keras_backend() == "tensorflow"
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    assert versions.keras_backend() == "jax"
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert versions.keras_backend() == "torch"
    imported = SimpleNamespace(
        __version__="3.15.1", backend=SimpleNamespace(backend=lambda: "tensorflow")
    )
    monkeypatch.setitem(sys.modules, "keras", imported)
    assert versions.keras_backend() == "tensorflow"


PROGRAM = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tensorflow":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "tensorflow" else found(name)
"""
USE = (
    PROGRAM
    + """
import numpy, blinkrun.tf as blink
blink.init()
assert blink.shard(numpy.arange(2)).tolist() == [0, 1]
try:
    blink.allreduce
except ImportError as err:
    print(err)
"""
)


def run(program, **environ):
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_importing_it_imports_no_tensorflow():
    program = "import sys, blinkrun.tf; print(sorted({'tensorflow', 'keras'} & set(sys.modules)))"
    assert run(program).stdout == "[]\n"


def test_without_tensorflow_the_import_fails_unless_keras_runs_on_torch():
    failed = run(PROGRAM + "import blinkrun.tf")
    assert failed.stderr.splitlines()[-1].startswith("ImportError: blinkrun.tf needs TensorFlow")
    used = run(USE, KERAS_BACKEND="torch")
    assert used.stdout.startswith("blinkrun.tf needs TensorFlow 2.16"), used.stderr


def test_every_name_is_listed_and_elastic_says_why_it_is_absent():
    import blinkrun.tf as blink

    assert set(blink.__all__) <= set(dir(blink))
    assert sorted(blink.__all__) == blink.__all__
    assert blink.keras.__name__ == "blinkrun.tf.keras"
    with pytest.raises(AttributeError, match=r"elastic is absent: elastic jobs are a later part"):
        _ = blink.elastic
    with pytest.raises(ImportError, match=r"elastic is absent: elastic jobs are a later part"):
        from blinkrun.tf import elastic  # noqa: F401
    with pytest.raises(AttributeError, match=r"has no attribute 'missing'"):
        _ = blink.missing


@pytest.mark.parametrize("package", ["blinkrun.tf", "blinkrun.tf.keras"])
def test_no_module_takes_the_place_of_a_name(package):
    """Importing a submodule puts it under its name into the package, instead of what was there."""
    names = importlib.import_module(package)
    modules = {found.name for found in pkgutil.iter_modules(names.__path__)}
    assert modules & set(names.__all__) <= {"callbacks"}
