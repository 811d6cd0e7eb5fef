"""The source distribution builds a wheel, and the wheel works where nothing else of us is."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from support.places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# What a checkout has beside the sources; a build reads the rest.
LEFT_OUT = shutil.ignore_patterns(
    ".git",
    ".venv*",
    "build",
    "dist",
    "*.egg-info",
    "__pycache__",
    "*.so",
    ".*_cache",
    ".hypothesis",
)


def run(*command, cwd, **environ):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=LEFT_OUT)
    run(sys.executable, "setup.py", "-q", "sdist", "-d", folder, cwd=source)
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist):
    command = ("-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", sdist.parent)
    run(sys.executable, *command, sdist, cwd=sdist.parent)
    return next(sdist.parent.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel):
    """The interpreter of an environment with the wheel, and our dependencies lent to it."""
    home = wheel.parent / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    command = ("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, wheel)
    run(sys.executable, *command, cwd=home)
    lent = [
        entry
        for entry in Path(sysconfig.get_path("purelib")).iterdir()
        if "blinkrun" not in entry.name and entry.suffix != ".pth" and entry.name != "bin"
    ]
    for entry in lent:
        if not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return home / "bin" / "python"


def test_the_source_distribution_holds_what_a_build_reads(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        str(path.relative_to(ROOT))
        for folder in ("blinkrun", "launcher", "requirements", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".hpp", ".cu", ".txt", ".typed")
    }
    assert wanted | {"LICENSE", "README.md", "Makefile", "pyproject.toml"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_the_wheel_holds_the_packages_and_the_kernel_but_no_sources_of_the_core(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "blinkrun/py.typed" in names
    assert "blinkrun/launcher/__init__.py" in names
    assert [name for name in names if name.startswith("blinkrun/_core.")]
    inside = [name for name in names if ".dist-info/" not in name]
    assert {name.partition("/")[0] for name in inside} == {"blinkrun"}
    assert not [name for name in names if name.endswith(".cpp")]
    assert "blinkrun/csrc/kernels.cu" in names
    shared = {f"blinkrun/csrc/{name}.hpp" for name in ("portable", "steps", "types")}
    headers = {name for name in names if name.endswith(".hpp")}
    assert shared <= headers
    assert all(name.startswith("blinkrun/csrc/device_") for name in headers - shared)
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "blinkrun").rglob("*.py")}
    assert modules <= set(names)


def test_the_wheel_works_apart_from_the_source(python):
    code = """
import blinkrun, numpy
blinkrun.init()
assert blinkrun.allreduce(numpy.arange(5.0)).tolist() == [0, 1, 2, 3, 4]
print(blinkrun.__file__)
"""
    printed = run(python, "-c", code, cwd=python.parent, OMPI_MCA_btl="self,sm,tcp").strip()
    assert Path(printed).is_relative_to(python.parent.parent)


def test_the_kernel_of_the_wheel_is_whole(python):
    code = """
import re
from blinkrun.executors import kernel_source
texts = [kernel_source.source(), *kernel_source.headers().values()]
included = {name for text in texts for name in re.findall(r'^#include "([^"]+)"', text, re.M)}
print(included == set(kernel_source.headers()))
"""
    assert run(python, "-c", code, cwd=python.parent).strip() == "True"


def test_the_launcher_of_the_wheel_answers(python):
    printed = run(python, "-m", "blinkrun.launcher.cli", "--help", cwd=python.parent)
    assert "-np" in printed
