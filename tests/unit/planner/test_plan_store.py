"""Plans on disk: kept, found, made anew when broken, never the reason that a job fails."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from support.topologies import host_of, mesh_of

from blinkrun.planner import store
from blinkrun.planner.make import make_plan
from blinkrun.topology.cpu import cpu_topology

THREE = cpu_topology(host_of(1, 2), 3)
FOUR = cpu_topology(host_of(1, 2), 4)


@pytest.fixture
def made(monkeypatch):
    """Which topologies have been planned, in order."""
    calls = []

    def counted(topology, **options):
        calls.append(topology)
        return make_plan(topology, **options)

    monkeypatch.setattr(store, "make_plan", counted)
    return calls


def test_a_plan_is_made_once(tmp_path, made):
    plans = [store.plan_of(THREE, tmp_path / "new" / "folder") for _ in range(3)]
    assert plans == [make_plan(THREE)] * 3
    assert made == [THREE]


def test_topologies_and_losses_are_kept_apart(tmp_path, made):
    for _ in range(2):
        assert store.plan_of(THREE, tmp_path).size == 3
        assert store.plan_of(FOUR, tmp_path).size == 4
        assert store.plan_of(FOUR, tmp_path, loss=Fraction(0)).loss == 0
    assert made == [THREE, FOUR, FOUR]


def test_without_a_folder_nothing_is_kept(made):
    assert store.plan_of(THREE) == store.plan_of(THREE, None)
    assert made == [THREE, THREE]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"version": 0}'])
def test_a_broken_file_is_made_anew(tmp_path, made, content):
    plan = store.plan_of(THREE, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert store.plan_of(THREE, tmp_path) == plan
    assert store.load(path) == plan
    assert made == [THREE, THREE]


def test_a_plan_of_something_else_is_not_believed(tmp_path, made):
    store.plan_of(THREE, tmp_path)
    (path,) = tmp_path.iterdir()
    store.save(make_plan(FOUR), path)
    assert store.plan_of(THREE, tmp_path).size == 3
    assert made == [THREE, THREE]


def test_a_path_that_is_no_folder_costs_nothing_but_time(tmp_path, made):
    blocked = tmp_path / "file"
    blocked.write_text("here first")
    assert store.plan_of(THREE, blocked) == store.plan_of(THREE, blocked / "below")
    assert made == [THREE, THREE]
    assert blocked.read_text() == "here first"


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(_self, _target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert store.plan_of(THREE, tmp_path).size == 3
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_cleaned_up_is_left(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert not store.save(make_plan(THREE), tmp_path / "plan.json")


def test_many_writers_leave_one_whole_file(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(lambda _: store.plan_of(FOUR, tmp_path), range(24)))
    assert set(plans) == {make_plan(FOUR)}
    (path,) = tmp_path.iterdir()
    assert store.load(path) == plans[0]


def test_one_socket_is_planned_without_loading_a_solver():
    code = (
        "import sys\n"
        "from blinkrun.planner.store import plan_of\n"
        "from blinkrun.topology.cpu import cpu_topology\n"
        "from blinkrun.topology.probe import probe_host\n"
        "plan_of(cpu_topology(probe_host(affinity=[0]), 4))\n"
        "print(sorted({'scipy', 'networkx', 'numpy', 'torch', 'mpi4py'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_errors_of_planning_are_not_hidden(tmp_path):
    with pytest.raises(ValueError, match="cannot be reached"):
        store.plan_of(mesh_of(2, {(0, 1): 1}), tmp_path)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"BLINKRUN_CACHE_DIR": "/fast", "XDG_CACHE_HOME": "/x"}, "/fast/plans"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/home/ada"}, "/x/blinkrun/plans"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/ada"}, "/home/ada/.cache/blinkrun/plans"),
        ({"HOME": "/home/ada"}, "/home/ada/.cache/blinkrun/plans"),
        ({"BLINKRUN_CACHE_DIR": "", "HOME": "/h"}, "/h/.cache/blinkrun/plans"),
    ],
)
def test_where_plans_are_kept(environ, folder):
    assert store.cache_dir(environ) == Path(folder)


def test_without_a_home_the_users_own_is_taken():
    assert store.cache_dir({}) == Path(os.path.expanduser("~")) / ".cache/blinkrun/plans"


def test_kept_files_are_private_to_the_user(tmp_path):
    store.plan_of(THREE, tmp_path)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) & 0o022 == 0
