"""When MPI is there to join hosts for ranks that met by something else; real jobs in frameworks."""

import sys

import pytest

from blinkrun.comm import beside
from blinkrun.comm.loopback import LoopbackControl

RANK = "OMPI_COMM_WORLD_RANK"


@pytest.mark.parametrize(
    ("environ", "of_all_ranks"),
    [
        ({}, True),
        ({RANK: "0"}, False),  # MPI would wait for ranks that are not of the group
        ({RANK: "0", "TORCHELASTIC_RUN_ID": "1"}, True),  # it is torchrun itself that MPI started
    ],
)
def test_no_mpi_to_use(monkeypatch, environ, of_all_ranks):
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    for name in (RANK, "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID", "BLINKRUN_DDP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert beside.join(LoopbackControl(), of_all_ranks=of_all_ranks, timeout_s=1.0) is None
    assert "mpi4py.MPI" not in sys.modules


def test_what_was_not_begun_needs_no_end():
    def fail():
        raise AssertionError

    assert beside.end(before=[fail]) is None


@pytest.mark.parametrize("is_launched", [False, True])
def test_who_fails_ends_all_that_mpi_has_started(monkeypatch, is_launched):
    """The others waited for it where MPI ends, and it for them if the program had loaded mpi4py."""
    monkeypatch.delenv("BLINKRUN_LAUNCHED", raising=False)
    if is_launched:
        monkeypatch.setenv("BLINKRUN_LAUNCHED", "1")
    codes = []
    beside.abort()  # nobody has joined by MPI
    control = LoopbackControl()
    monkeypatch.setattr(control, "abort", codes.append)
    monkeypatch.setattr(beside._state, "everyone", control)
    beside.abort()
    assert codes == ([] if is_launched else [1])
