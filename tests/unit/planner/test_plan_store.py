"""Plans on disk: kept, found, made anew when broken, never the reason that a job fails."""

import hashlib
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from fractions import Fraction
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import host_of, mesh_of

from blinkrun.errors import UsageError
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


@pytest.fixture
def said(capsys, monkeypatch):
    """`said()` is what was written on stderr since the last call."""
    monkeypatch.setattr(store, "_said", set())
    return lambda: capsys.readouterr().err


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


def whole(text):
    """A file as the store writes it, around any text."""
    body = text.encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "its content is not what was written"),
        (b"{", "its content is not what was written"),
        (b"\xff\xfe\n", "its content is not what was written"),
        (whole('{"size": 3}')[:-1], "its content is not what was written"),
        (whole('{"version": 0}'), "plan of version 0, this is"),
        (whole("{"), "text is no plan"),
        (whole(make_plan(FOUR).to_json()), "another topology"),
    ],
)
def test_a_broken_file_is_named_and_made_anew(tmp_path, made, said, content, problem):
    plan = store.plan_of(THREE, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert store.plan_of(THREE, tmp_path) == plan
    (line,) = said().splitlines()
    assert line.startswith(f"blinkrun: plan cache: {path} is broken (")
    assert problem in line
    assert store.plan_of(THREE, tmp_path) == plan
    assert (made, said()) == ([THREE, THREE], "")


@settings(max_examples=15)
@given(st.data())
def test_no_damage_is_believed(data):
    """A byte changed, and some behind it cut: the plan is made again, and it is the same."""
    with TemporaryDirectory() as folder, redirect_stderr(StringIO()):
        plan = store.plan_of(THREE, Path(folder))
        (path,) = Path(folder).iterdir()
        content = path.read_bytes()
        at = data.draw(st.integers(0, len(content) - 1))
        byte = bytes([content[at] ^ data.draw(st.integers(1, 255))])
        path.write_bytes(content[:at] + byte + content[at + data.draw(st.integers(0, 2)) :])
        assert store.plan_of(THREE, Path(folder)) == plan
        assert path.read_bytes() == content


def test_a_path_that_is_no_folder_costs_one_line_and_time(tmp_path, made, said):
    blocked = tmp_path / "file"
    blocked.write_text("here first")
    for _ in range(2):
        assert store.plan_of(THREE, blocked) == make_plan(THREE)
    assert said() == (
        f"blinkrun: plan cache {blocked}: Not a directory; plans are not kept"
        " (BLINKRUN_CACHE_DIR names another folder)\n"
    )
    assert made == [THREE, THREE]
    assert blocked.read_text() == "here first"


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, said):
    def full(_self, _target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert store.plan_of(THREE, tmp_path).size == 3
    assert list(tmp_path.iterdir()) == []
    assert f"plan cache {tmp_path}: No space left on device; plans are not kept" in said()


def test_what_cannot_be_cleaned_up_is_left(tmp_path, monkeypatch, said):
    def refuse(*_args, **_options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert store.plan_of(THREE, tmp_path).size == 3
    assert said().count("Read-only file system") == 1


def test_any_value_can_be_kept_under_its_key(tmp_path, said):
    made = []

    def keep(key, value):
        return store.cached(
            tmp_path, key, lambda: made.append(key) or value, encode=str, decode=int
        )

    assert [keep("a", 1), keep("b", 2), keep("a", 3), keep("b", 4)] == [1, 2, 1, 2]
    assert (made, said()) == (["a", "b"], "")


def test_the_folder_that_a_command_uses_is_made(tmp_path):
    environ = {"BLINKRUN_CACHE_DIR": str(tmp_path / "a/b")}
    assert store.command_cache_dir(environ) == tmp_path / "a/b/plans"
    assert (tmp_path / "a/b/plans").is_dir()


def test_a_folder_that_the_user_has_named_must_be_usable(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(
        UsageError, match=r"plan cache .*/file/plans: Not a directory; set BLINKRUN"
    ):
        store.command_cache_dir({"BLINKRUN_CACHE_DIR": str(blocked)})
    assert store.command_cache_dir({"XDG_CACHE_HOME": str(blocked)}).parent.parent == blocked
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="not writable"):
        store.check_cache_dir(tmp_path)


def test_many_writers_leave_one_whole_file(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(lambda _: store.plan_of(FOUR, tmp_path), range(24)))
    assert set(plans) == {make_plan(FOUR)}
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == whole(plans[0].to_json())


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
