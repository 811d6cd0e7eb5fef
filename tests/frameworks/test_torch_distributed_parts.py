"""The parts of the backend blink, each in one process."""

import importlib
import importlib.metadata
import os
import subprocess
import sys
import threading
import types
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import torch.distributed as dist  # noqa: E402 - only where there is torch
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from blinkrun.comm import beside  # noqa: E402
from blinkrun.errors import (  # noqa: E402
    CollectiveTimeoutError,
    InvalidBufferError,
    UsageError,
)
from blinkrun.launcher import ddp_hook, torch_entry  # noqa: E402
from blinkrun.torch.distributed import backend  # noqa: E402
from blinkrun.torch.distributed.calls import as_line  # noqa: E402
from blinkrun.torch.distributed.reductions import (  # noqa: E402
    NATIVE,
    WIDER,
    from_wire,
    is_native,
    moved_as,
    reduction,
    to_wire,
)
from blinkrun.torch.distributed.store import StoreControl  # noqa: E402
from blinkrun.torch.distributed.work import Lane  # noqa: E402

DEADLINE_S = 20.0


# ---- the control plane -------------------------------------------------------------------------


def run_ranks(size, body):
    """What `body(rank)` returned in a thread for each rank; the first error is raised."""
    results, errors = [None] * size, []

    def one(rank):
        try:
            results[rank] = body(rank)
        except BaseException as err:
            errors.append(err)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    if errors:
        raise errors[0]
    return results


def controls(store, size):
    return [StoreControl(store, rank, size, timeout_s=DEADLINE_S) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 3])
def test_items_reach_every_rank_in_order(size):
    planes = controls(dist.HashStore(), size)

    def body(rank):
        plane = planes[rank]
        first = plane.allgather(("item", rank))
        return first, plane.broadcast(rank, root=size - 1), plane.allgather(None)

    wanted = [("item", rank) for rank in range(size)]
    assert run_ranks(size, body) == [(wanted, size - 1, [None] * size)] * size


def test_a_group_does_not_read_what_its_predecessor_left_in_the_store():
    store = dist.HashStore()
    for number in range(3):
        planes = controls(store, 2)
        found = run_ranks(2, lambda rank, n=number, p=planes: p[rank].allgather((n, rank)))
        assert found == [[(number, 0), (number, 1)]] * 2


def test_subsets_count_in_the_order_given_and_do_not_disturb_each_other():
    planes = controls(dist.HashStore(), 3)

    def body(rank):
        found = []
        for chosen in ([2, 0], [0, 1, 2]):
            if rank in chosen:
                part = planes[rank].sub(chosen, timeout_s=DEADLINE_S)
                found.append((part.rank, part.size, part.allgather(rank)))
        return found

    found = run_ranks(3, body)
    assert found[0] == [(1, 2, [2, 0]), (0, 3, [0, 1, 2])]
    assert found[1] == [(1, 3, [0, 1, 2])]
    with pytest.raises(UsageError, match="rank 0 is none of"):
        planes[0].sub([1, 2], timeout_s=1.0)


def test_the_ranks_that_do_not_come_are_named():
    plane = StoreControl(dist.HashStore(), 1, 4, timeout_s=0.05)
    with pytest.raises(CollectiveTimeoutError, match=r"ranks \[0, 2, 3\] did not come") as raised:
        plane.allgather("here")
    assert raised.value.ranks == (0, 2, 3)


# ---- lanes -------------------------------------------------------------------------------------


def test_a_lane_keeps_the_order_of_calls_of_both_kinds():
    lane = Lane("test")
    gate, order = threading.Event(), []

    def slow():
        gate.wait(DEADLINE_S)
        order.append("first")

    works = [lane.submit(slow, [], "slow"), lane.submit(lambda: order.append("second"), [], "next")]
    assert not works[1].is_completed()
    with pytest.raises(CollectiveTimeoutError, match="next was not through within"):
        works[1].wait(timedelta(milliseconds=10))
    gate.set()
    lane.call(lambda: order.append("third"), [], "last")
    assert order == ["first", "second", "third"]
    assert all(work.is_success() for work in works)
    lane.refuse(RuntimeError("over"))
    assert lane.join(DEADLINE_S)


def test_a_call_of_a_lane_runs_in_the_callers_thread_if_nothing_is_before_it():
    threads = []
    Lane("test").call(lambda: threads.append(threading.current_thread()), [], "call")
    assert threads == [threading.current_thread()]


def test_errors_come_out_where_the_result_is_wanted_and_the_lane_goes_on():
    lane = Lane("test")

    def fails():
        raise ValueError("boom")

    work = lane.submit(fails, [], "call")
    with pytest.raises(ValueError, match="boom"):
        work.wait()
    assert isinstance(work.exception(), ValueError)
    with pytest.raises(ValueError, match="boom"):
        lane.call(fails, [], "call")
    with pytest.raises(ValueError, match="boom"):
        lane.submit(fails, [], "call").get_future().wait()
    assert lane.submit(lambda: 3, ["result"], "call").result() == ["result"]


def test_a_lane_that_is_closed_finishes_what_it_has_and_refuses_the_rest():
    lane = Lane("test")
    done = []
    work = lane.submit(lambda: done.append(1), [], "call")
    lane.refuse(RuntimeError("over"))
    assert lane.join(DEADLINE_S)
    assert work.is_success()
    assert done == [1]
    for start in (lane.call, lambda *call: lane.submit(*call).wait()):
        with pytest.raises(RuntimeError, match="over"):
            start(lambda: done.append(2), [], "call")
    assert done == [1]


def test_futures_hold_the_results_whenever_they_are_asked_for():
    lane, gate = Lane("test"), threading.Event()
    tensor = torch.ones(2)
    work = lane.submit(lambda: gate.wait(DEADLINE_S), [tensor], "call")
    early = work.get_future().then(lambda future: future.value()[0] + 1)
    gate.set()
    work.wait()
    assert torch.equal(early.wait(), tensor + 1)
    assert work.get_future().wait()[0] is tensor


def test_a_callback_may_make_calls_of_the_lane_that_runs_it():
    """The helper that runs callbacks is the one that would carry the call out."""
    lane, gate, order = Lane("test"), threading.Event(), []
    first = lane.submit(lambda: gate.wait(DEADLINE_S), [], "first")

    def then(_):
        lane.submit(lambda: order.append("from the callback"), [], "call").wait()
        lane.call(lambda: order.append("at once"), [], "call")

    future = first.get_future().then(then)
    last = lane.submit(lambda: order.append("last"), [], "call")
    gate.set()
    future.wait()
    last.wait(timedelta(seconds=DEADLINE_S))
    assert order == ["from the callback", "at once", "last"]


# ---- reductions --------------------------------------------------------------------------------

KINDS = ("SUM", "PRODUCT", "MIN", "MAX")
FOLDS = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}


@given(
    st.sampled_from([torch.int16, torch.uint16, torch.uint32, torch.uint64]),
    st.sampled_from(KINDS),
    st.lists(st.tuples(*[st.integers(0, 2**15 - 1)] * 3), min_size=1, max_size=5),
)
@settings(deadline=None, max_examples=60)
def test_types_that_the_core_lacks_reduce_as_if_it_had_them(dtype, kind, rows):
    how = reduction(getattr(dist.ReduceOp, kind))
    given_rows = [torch.tensor(row, dtype=torch.int64).to(dtype) for row in rows]
    wires = [to_wire(row, how)[0] for row in given_rows]
    assert all(wire.dtype in NATIVE for wire in wires)
    total, exact = wires[0], given_rows[0].to(torch.int64)
    for wire, row in zip(wires[1:], given_rows[1:], strict=True):
        total, exact = FOLDS[kind](total, wire), FOLDS[kind](exact, row.to(torch.int64))
    target = torch.zeros(3, dtype=torch.int64).to(dtype)
    from_wire(total, target, how, len(rows))
    assert torch.equal(target.view(torch.uint8), exact.to(dtype).view(torch.uint8))


def test_the_core_does_what_it_can_and_the_rest_goes_the_long_way():
    add, average = reduction(dist.ReduceOp.SUM), reduction(dist.ReduceOp.AVG)
    assert all(is_native(dtype, add) for dtype in NATIVE)
    assert {dtype for dtype in NATIVE if is_native(dtype, average)} == {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
    assert not any(is_native(dtype, add) for dtype in WIDER)
    assert not is_native(torch.int32, reduction(dist.ReduceOp.BXOR))


def test_reductions_that_mean_nothing_are_refused():
    for kind, dtype in (("MAX", torch.complex64), ("AVG", torch.bool), ("AVG", torch.uint64)):
        with pytest.raises(InvalidBufferError, match=f"ReduceOp.{kind} is not defined on"):
            to_wire(torch.zeros(2, dtype=dtype), reduction(getattr(dist.ReduceOp, kind)))


def test_what_only_moves_is_bytes_where_the_core_has_no_such_type():
    assert moved_as(torch.float32) == (int(NATIVE[torch.float32]), 1)
    assert moved_as(torch.complex128) == (0, 16)


@given(st.integers(1, 4), st.integers(0, 5), st.booleans())
@settings(deadline=None, max_examples=40)
def test_tensors_that_lie_in_a_row_are_one_line(number, count, is_apart):
    room = torch.arange(number * (count + is_apart) + 3.0)
    step = count + is_apart
    tensors = [room[at * step + 1 : at * step + 1 + count] for at in range(number)]
    line = as_line(tensors)
    if is_apart and number > 1 and count:
        assert line is None
    else:
        assert line is not None
        assert torch.equal(line, torch.cat(tensors))


# ---- how torch comes to it ---------------------------------------------------------------------


class Module(types.SimpleNamespace):
    """What `patch` needs of ``torch.distributed.distributed_c10d``."""

    def __init__(self):
        calls = []
        super().__init__(
            calls=calls,
            Backend=str,
            GroupMember=types.SimpleNamespace(WORLD=object()),
            init_process_group=lambda *args, **options: calls.append((args, options)),
            _new_process_group_helper=lambda *args, **options: calls.append((args, options)),
            monitored_barrier=lambda *args: calls.append((args, {})),
        )


@pytest.mark.parametrize("asked", [None, "gloo", "nccl", "NCCL", "cpu:gloo,cuda:nccl", "mpi"])
def test_every_backend_becomes_blink(asked):
    module = Module()
    ddp_hook.patch(module)
    module.init_process_group(asked, "env://", device_id=3, world_size=2)
    module.init_process_group(backend=asked)
    module._new_process_group_helper(2, 0, [], asked, "store", timeout=1)
    assert module.calls == [
        (("blink", "env://"), {"world_size": 2}),
        (("blink",), {}),
        ((2, 0, [], "blink", "store"), {"timeout": 1}),
    ]


@pytest.mark.parametrize("is_ours", [True, False])
def test_an_exception_that_nobody_catches_ends_the_job(monkeypatch, is_ours):
    did = []
    monkeypatch.setattr(beside, "abort", lambda: did.append("aborts"))
    monkeypatch.setattr(backend, "_hooked_pid", os.getpid() if is_ours else 1)
    monkeypatch.setattr(backend, "_has_failed", False)
    backend._excepthook(lambda *_: did.append("says it"))(ValueError, ValueError("boom"), None)
    assert did == (["says it", "aborts"] if is_ours else ["says it"])  # 1: a forked child


def test_a_fake_backend_stays_one():
    module = Module()
    ddp_hook.patch(module)
    module.init_process_group("fake")
    assert module.calls == [(("fake",), {})]


def test_a_rank_started_by_hand_is_left_as_it_is():
    environ = {"BLINKRUN_DDP": "1"}
    before = list(sys.meta_path)
    ddp_hook.install(environ)
    assert environ == {"BLINKRUN_DDP": "1"}
    assert sys.meta_path == before


def test_the_hook_loads_nothing_and_patches_torch_when_it_comes():
    code = (
        "import os, sys; from blinkrun.launcher import ddp_hook\n"
        "ddp_hook.install(os.environ); assert 'torch' not in sys.modules\n"
        "import torch.distributed as dist, inspect\n"
        "assert 'ddp_hook' in dist.init_process_group.__code__.co_filename\n"
        "assert 'TCPStore' in inspect.getsource(dist.distributed_c10d)\n"
        "print(os.environ['WORLD_SIZE'], os.environ.get('TORCHELASTIC_USE_AGENT_STORE'))\n"
    )
    environ = {"BLINKRUN_RANK": "1", "BLINKRUN_SIZE": "4", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "4 None\n"


def test_torch_is_told_the_backend_by_an_entry_point():
    entries = importlib.metadata.entry_points(group="torch.backends", name="blinkrun")
    assert [entry.load() for entry in entries] == [torch_entry.register]
    torch_entry.register()
    assert dist.is_backend_available("blink")
    importlib.import_module("blinkrun.torch.distributed").register()
    assert dist.Backend.backend_capability["blink"] == ["cpu", "cuda"]
