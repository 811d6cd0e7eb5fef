import sys

import pytest

from blinkrun.comm import world
from blinkrun.comm.loopback import LoopbackControl
from blinkrun.comm.threads import thread_controls
from blinkrun.comm.world import World, connect, gather_world, group_by_host, is_mpi_rank
from blinkrun.errors import LaunchError


def test_hosts_are_grouped_in_the_order_of_their_first_rank():
    names = [("b", "1"), ("a", "2"), ("b", "1"), ("a", "3")]
    assert group_by_host(names) == ((0, 2), (1,), (3,))  # the same name, booted apart: two hosts


def test_places_of_a_rank():
    place = World(rank=3, size=5, hosts=("a", "a", "b", "b", "b"), groups=((0, 1), (2, 3, 4)))
    assert (place.local_rank, place.local_size) == (1, 3)
    assert (place.cross_rank, place.cross_size) == (1, 2)
    assert place.local_ranks == (2, 3, 4)


def test_hosts_whose_ranks_are_not_side_by_side():
    place = World(rank=2, size=4, hosts=("a", "b", "a", "c"), groups=((0, 2), (1,), (3,)))
    assert place.host_of == (0, 1, 0, 2)
    assert place.host_names == ("a", "b", "c")
    assert place.leaders == (0, 1, 3)
    assert place.local_rank == 1


def test_a_process_alone_is_a_world_of_one():
    alone = gather_world(LoopbackControl())
    assert (alone.rank, alone.size, alone.groups) == (0, 1, ((0,),))


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, False),
        ({"OMPI_COMM_WORLD_RANK": "0"}, True),
        ({"PMI_RANK": "1"}, True),
        ({"PMIX_RANK": "1"}, True),
        ({"SLURM_PROCID": "0"}, False),
    ],
)
def test_who_started_this_process(monkeypatch, environ, found):
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    assert is_mpi_rank(environ) is found


def test_connect_without_mpi(monkeypatch):
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    assert isinstance(connect({}), LoopbackControl)


def test_tasks_of_srun_that_no_mpi_joins_are_refused(monkeypatch):
    """Each would train alone, and nobody would notice."""
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    step = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}
    with pytest.raises(LaunchError, match=r"srun started 4 tasks.* --mpi=pmix"):
        connect(step)
    assert connect({"SLURM_STEP_NUM_TASKS": "1"}).size == 1
    assert connect({**step, "BLINKRUN_LAUNCHED": "job"}).size == 1  # -np 1 inside a larger step


def test_a_host_that_hides_its_boot_id(monkeypatch):
    def unreadable(self):
        raise PermissionError(self)

    monkeypatch.setattr(world.Path, "read_text", unreadable)
    assert gather_world(LoopbackControl()).size == 1


def test_threads_exchange_items():
    controls = thread_controls(1)
    assert controls[0].allgather("x") == ["x"]
    assert controls[0].broadcast("y") == "y"
    assert controls[0].finalize() is None
