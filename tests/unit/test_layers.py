"""Who may import what, beyond the order of the layers that import-linter checks."""

import ast
import sys
from functools import cache

import pytest
from support.places import ROOT

PACKAGE = ROOT / "blinkrun"
LAUNCHER = ROOT / "launcher"
BASE = {"errors", "env", "units", "log", "version", "cli"}  # cli: the table of commands
PURE = ("topology", "planner", "schedule", "simulator")
# these read the machine and the plan cache
RIM = {"topology/probe.py", "topology/probe_sysfs.py", "planner/store.py"}
IMPURE = {"mpi4py", "os", "time", "random", "socket", "subprocess", "threading", "tempfile"}


@cache
def imports(path):
    """Absolute names of the modules that the file imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports by a relative name"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def importers(module):
    """Files of the package that import `module` or something in it."""
    return {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name == module or name.startswith(f"{module}.") for name in imports(path))
    }


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("mpi4py", {"comm/mpi.py", "bench/peers.py", "bench/training.py"}),
        ("blinkrun._core", {"executors/native.py"}),
        ("cupy", {"executors/cuda.py", "bench/gpu_check_cupy.py"}),
        ("cupy_backends", {"executors/cuda.py"}),
        (
            "matplotlib",
            {
                *(
                    "bench/plot.py",
                    "bench/plot_training.py",
                    "bench/report.py",
                    "bench/plans_plot.py",
                ),
                *("cli/plot_draw.py", "paper/draw.py"),
            },
        ),
    ],
)
def test_only_these_files_import(module, allowed):
    assert importers(module) <= allowed


def test_only_the_adapter_and_the_benchmark_import_torch():
    found = importers("torch") - {"tf/keras/on_torch.py"}  # Keras has a torch backend
    assert {path.split("/")[0] for path in found} <= {"torch", "bench"}


def test_only_the_adapter_and_the_benchmark_import_tensorflow():
    for module in ("tensorflow", "keras", "tf_keras"):
        folders = {path.split("/")[0] for path in importers(module)}
        assert folders <= {"tf", "bench", "alias"}, module


def test_the_launcher_stands_on_the_standard_library_and_the_base():
    allowed = {f"blinkrun.{name}" for name in BASE} | {"blinkrun.launcher"}
    for path in LAUNCHER.rglob("*.py"):
        for name in imports(path):
            if name.split(".")[0] == "blinkrun":
                inside = ".".join(name.split(".")[:2])
                assert name == "blinkrun" or inside in allowed, f"{path.name} imports {name}"
            else:
                assert name.split(".")[0] in sys.stdlib_module_names, f"{path.name}: {name}"


@pytest.mark.parametrize("layer", PURE)
def test_pure_layers_have_no_clock_no_environment_and_no_io(layer):
    for path in (PACKAGE / layer).rglob("*.py"):
        if str(path.relative_to(PACKAGE)) not in RIM:
            found = {name.split(".")[0] for name in imports(path)} & IMPURE
            assert not found, f"{path.relative_to(ROOT)} imports {sorted(found)}"


def test_no_module_is_longer_than_the_house_allows():
    files = [*PACKAGE.rglob("*.py"), *LAUNCHER.rglob("*.py"), *(PACKAGE / "csrc").glob("*.?pp")]
    long = {p.name: n for p in files if (n := len(p.read_text().splitlines())) > 500}
    assert long == {}
