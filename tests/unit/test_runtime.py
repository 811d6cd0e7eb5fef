"""init and shutdown where there is nobody else; on real ranks: tests/ranks."""

from dataclasses import replace

import numpy as np
import pytest
from support.topologies import host_of

import blinkrun
from blinkrun import runtime
from blinkrun.comm import world as world_module
from blinkrun.comm.loopback import LoopbackControl
from blinkrun.comm.world import World
from blinkrun.errors import LaunchError, NotInitializedError, UsageError
from blinkrun.executors.agreed import agreed_plan
from blinkrun.planner import store
from blinkrun.planner.make import make_plan
from blinkrun.schedule.ir import Addressing
from blinkrun.select import online
from blinkrun.topology.cpu import cpu_topology
from blinkrun.types import Collective


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """A process without MPI, whose state ends with the test."""
    monkeypatch.setattr(world_module, "connect", LoopbackControl)
    monkeypatch.setattr(runtime, "_state", runtime._State(hooked=True))
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("BLINKRUN_TIMEOUT_S", raising=False)
    monkeypatch.delenv("BLINKRUN_PLAN", raising=False)
    monkeypatch.delenv("BLINKRUN_TUNE", raising=False)


@pytest.mark.usefixtures("alone")
def test_everything_but_init_needs_init():
    for call in (blinkrun.rank, blinkrun.size, blinkrun.barrier, lambda: blinkrun.empty(3)):
        with pytest.raises(NotInitializedError, match=r"needs blinkrun\.init"):
            call()
    blinkrun.shutdown()  # harmless
    assert not blinkrun.is_initialized()


@pytest.mark.usefixtures("alone")
def test_init_is_idempotent_and_comes_back_after_shutdown():
    blinkrun.init()
    first = blinkrun.world()
    blinkrun.init()
    assert blinkrun.world() is first
    assert blinkrun.allreduce(blinkrun.empty(0)).size == 0
    blinkrun.shutdown()
    with pytest.raises(NotInitializedError):
        first.barrier()
    blinkrun.init(timeout_s=3)
    assert blinkrun.world() is not first
    assert blinkrun.world().executor.timeout_s == 3


@pytest.mark.usefixtures("alone")
def test_what_hangs_on_shutdown_is_called_once_while_the_world_is_there(capsys):
    called = []

    def breaks():
        called.append("breaks")
        raise ValueError("no good")

    with pytest.raises(NotInitializedError, match="at_shutdown"):
        runtime.at_shutdown(breaks)
    blinkrun.init()
    runtime.at_shutdown(lambda: called.append(f"first of {blinkrun.size()}"))
    runtime.at_shutdown(breaks)
    runtime.at_shutdown(lambda: called.append("last"))
    blinkrun.shutdown()
    blinkrun.shutdown()
    assert called == ["last", "breaks", "first of 1"]
    assert "breaks failed: ValueError: no good" in capsys.readouterr().err
    blinkrun.init()
    blinkrun.shutdown()
    assert len(called) == 3


@pytest.mark.usefixtures("alone")
def test_a_group_ends_with_the_world():
    with pytest.raises(NotInitializedError):
        runtime.subgroup([0])
    blinkrun.init()
    closed, group = runtime.subgroup([0]), runtime.subgroup([0])
    closed.close()
    assert group.allreduce(np.ones(3)).tolist() == [1.0] * 3
    blinkrun.shutdown()
    assert group.is_closed
    for each in (closed, group):
        with pytest.raises(NotInitializedError):
            each.barrier()


@pytest.mark.usefixtures("alone")
def test_the_end_of_a_forked_child_is_not_that_of_the_rank(monkeypatch):
    blinkrun.init()
    monkeypatch.setattr(runtime._state, "pid", 1)  # as it looks from a child
    blinkrun.shutdown()
    assert not blinkrun.world().is_closed


@pytest.mark.usefixtures("alone")
def test_several_hosts_without_mpi_are_refused_by_name(monkeypatch):
    two = World(rank=0, size=2, hosts=("anna", "bert"), groups=((0,), (1,)))
    monkeypatch.setattr(world_module, "gather_world", lambda _: two)
    with pytest.raises(LaunchError, match=r"2 hosts \(anna, bert\), which only MPI joins"):
        blinkrun.init()
    assert not blinkrun.is_initialized()


@pytest.mark.usefixtures("alone")
def test_a_plan_that_cannot_be_made_is_an_error_of_its_own(monkeypatch):
    def broken(**_):
        raise LaunchError("no such machine")

    monkeypatch.setattr("blinkrun.topology.probe.probe_host", broken)
    with pytest.raises(LaunchError, match="no such machine"):
        blinkrun.init()


def test_other_ranks_hear_that_rank_0_could_not_plan():
    class Second(LoopbackControl):
        rank = 1

        def broadcast(self, item, root=0):
            return None, "no such machine"

    with pytest.raises(LaunchError, match=r"no such machine \(rank 0 could not plan\)"):
        agreed_plan(Second(), lambda: pytest.fail("only rank 0 plans"))


@pytest.mark.usefixtures("alone")
def test_a_plan_that_is_handed_over_is_used(monkeypatch, tmp_path):
    path = tmp_path / "plan.json"
    plan = replace(make_plan(cpu_topology(host_of(1, 1), 1)), machine="handed over")
    path.write_text(plan.to_json())
    monkeypatch.setenv("BLINKRUN_PLAN", str(path))
    blinkrun.init()
    assert blinkrun.world().plan == plan


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"{", "text is no plan"),
        (b"\xff", "can't decode"),
        (make_plan(cpu_topology(host_of(1, 2), 3)).to_json().encode(), "a plan for 3 ranks, but"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_a_plan_that_does_not_fit_is_one_line(monkeypatch, tmp_path, text, problem):
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_bytes(text)
    monkeypatch.setenv("BLINKRUN_PLAN", str(path))
    with pytest.raises(LaunchError) as caught:
        blinkrun.init()
    assert str(caught.value).startswith(f"BLINKRUN_PLAN={path}: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not blinkrun.is_initialized()


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan")])
@pytest.mark.usefixtures("alone")
def test_a_timeout_that_is_none(timeout_s):
    with pytest.raises(UsageError, match="timeout_s is"):
        blinkrun.init(timeout_s=timeout_s)


def tuned_chunks(folder, way):
    """What the job before has kept."""
    topology_hash = runtime.world().executor.plan.topology_hash
    key = f"chunks {topology_hash} {way.name}"
    return store.kept(folder / "plans", key, online.settled_from_json)


@pytest.mark.usefixtures("alone")
def test_chunks_are_learned_and_kept_for_the_next_job(monkeypatch, tmp_path):
    """By the way of addressing: what is best for private buffers is not for those in the arena."""
    monkeypatch.setenv("BLINKRUN_TUNE", "on")
    runtime.init()
    executor = runtime.world().executor
    # alone nothing is cut into chunks; say that a private buffer's program is
    executor._pipelined = {(Collective.ALLREDUCE, 0, Addressing.STAGED)}
    private = np.zeros(1 << 16, np.float32)
    shared = runtime.world().empty(1 << 16, "float32")
    assert tuned_chunks(tmp_path, Addressing.STAGED) is None
    for array in (private, shared):
        for _ in range(100):
            runtime.world().allreduce(array, out=array)
    learned = executor.tuners[Addressing.STAGED].settled()
    assert set(learned) == {online.kind_of(Collective.ALLREDUCE, private.nbytes)}
    runtime.shutdown()
    runtime.init()
    assert tuned_chunks(tmp_path, Addressing.STAGED) == learned
    assert tuned_chunks(tmp_path, Addressing.DIRECT) is None
    assert runtime.world().executor.tuners[Addressing.STAGED].settled() == learned
    runtime.shutdown()


@pytest.mark.parametrize("value", ["", "auto", "off"])
@pytest.mark.usefixtures("alone")
def test_on_shared_memory_nothing_is_tuned_unasked(monkeypatch, value):
    monkeypatch.setenv("BLINKRUN_TUNE", value)
    runtime.init()
    executor = runtime.world().executor
    assert not executor.tuners
    array = np.zeros(1 << 16, np.float32)
    assert executor.fast(int(Collective.ALLREDUCE), array, array, 0, 0)  # the short way is open
    runtime.shutdown()


@pytest.mark.usefixtures("alone")
def test_a_word_that_is_none_of_the_choices(monkeypatch):
    monkeypatch.setenv("BLINKRUN_TUNE", "maybe")
    with pytest.raises(UsageError, match="BLINKRUN_TUNE=maybe"):
        runtime.init()
