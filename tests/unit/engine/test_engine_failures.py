"""Requests that cannot run: every rank hears why, and the engine goes on."""

import threading
import time

import numpy as np
import pytest
from support.engines import allreduce, prepare, run_engines, submit

from blinkrun.buffers import view
from blinkrun.engine.handle import Part
from blinkrun.engine.request import ADASUM, Kind, Member, Request
from blinkrun.engine.settings import Settings
from blinkrun.errors import (
    AbortedError,
    CollectiveTimeoutError,
    InvalidBufferError,
    MismatchError,
    NonFiniteError,
    PeerLeftError,
    ProcessSetError,
    UsageError,
)
from blinkrun.types import Op

ONES = np.ones((2, 3), np.float32)

# kind, what rank 1 does otherwise than the others, words of both values
DISAGREEMENTS = [
    (Kind.ALLREDUCE, {"arrays": [np.ones((2, 4), np.float32)]}, ["(2, 4)", "(2, 3)"]),
    (Kind.ALLREDUCE, {"arrays": [np.ones((2, 3), np.float64)]}, ["float64", "float32"]),
    (Kind.ALLREDUCE, {"arrays": [ONES, ONES]}, ["2", "1"]),
    (Kind.ALLREDUCE, {"op": Op.MAX}, ["max", "sum"]),
    (Kind.ALLREDUCE, {"op": ADASUM}, ["adasum", "sum"]),
    (Kind.ALLREDUCE, {"scales": (0.5, 1.0)}, ["0.5", "1.0"]),
    (Kind.ALLREDUCE, {"device": "cuda:0"}, ["cuda:0", "cpu"]),
    (Kind.ALLREDUCE, {"kind": Kind.BROADCAST, "root": 0}, ["broadcast", "allreduce"]),
    (Kind.BROADCAST, {"root": 1}, ["root", "0", "1"]),
    (Kind.BROADCAST, {"arrays": [np.ones(6, np.float32)]}, ["(6,)", "(2, 3)"]),
    (Kind.ALLGATHER, {"arrays": [np.ones((5, 4), np.float32)]}, ["(5, 4)", "(2, 3)"]),
    (Kind.ALLTOALL, {"arrays": [np.ones((2, 4), np.float32)]}, ["(2, 4)", "(2, 3)"]),
    (Kind.REDUCESCATTER, {"arrays": [np.ones((3, 3), np.float32)]}, ["(3, 3)", "(2, 3)"]),
    (Kind.REDUCESCATTER, {"op": Op.MIN}, ["min", "sum"]),
]


def test_ranks_that_disagree_all_hear_both_values_and_go_on():
    def body(engine):
        rank = engine.world.rank
        messages = []
        for number, (kind, other, _) in enumerate(DISAGREEMENTS):
            options = {"arrays": [ONES], "kind": kind, "root": 0 if kind is Kind.BROADCAST else -1}
            options["splits"] = (1, 1, 0) if kind is Kind.ALLTOALL else ()
            if rank == 1:
                options |= {"root": -1} | other
                if kind is Kind.BROADCAST and "root" not in other:
                    options["root"] = 0
            options |= {"name": f"tensor{number}"}
            good = submit(engine, Kind.ALLREDUCE, f"beside{number}", [ONES])
            with pytest.raises(MismatchError) as caught:
                submit(engine, **options).wait()
            messages.append((str(caught.value), sorted(caught.value.calls)))
            good.wait()
            assert good.targets[0].owner.tolist() == [[3.0] * 3] * 2
            # The same name, now as all agree.
            assert allreduce(engine, f"tensor{number}", ONES).tolist() == [[3.0] * 3] * 2
        return messages

    for messages in run_engines(3, body):
        for number, (message, calls) in enumerate(messages):
            assert f"'tensor{number}'" in message
            assert calls == [0, 1, 2]
            assert "rank 1" in message
            for words in DISAGREEMENTS[number][2]:
                assert words in message, message


def test_join_gives_neutral_elements_and_counts_in_averages():
    ops = [Op.SUM, Op.AVERAGE, Op.MIN, Op.MAX, Op.PRODUCT]

    def body(engine):
        rank = engine.world.rank
        got = []
        for step in range(rank + 1):  # rank 0 has one step, rank 2 three
            requests = [
                prepare(Kind.ALLREDUCE, f"{dtype}.{op.name}", [data], op=op, scales=scales)
                for dtype in ("float32", "int32", "int8")
                for op in ops
                for scales in [(2.0, 1.0)]
                for data in [np.full(3, 3 * (rank + 1), dtype)]
            ]
            requests.append(prepare(Kind.ALLREDUCE, "b", [ONES > 0], op=Op.MIN))
            requests.append(prepare(Kind.ALLREDUCE, "one", [ONES], op=ADASUM))
            # With several at once, those of an operation and a type are fused.
            requests += [
                prepare(Kind.ALLREDUCE, f"fused {op.name}", [np.full(5, 3.0 + rank)], op=op)
                for op in ops
            ]
            requests.append(prepare(Kind.ALLREDUCE, "group", [np.full(n, 7.0) for n in (1, 9)]))
            handles = engine.submit_all(requests, sync=step % 2 == 0)
            for handle in handles:
                handle.wait()
            got.append([handle.targets[0].owner.flat[0].item() for handle in handles])
            engine.barrier()
        return got, engine.join()

    results = run_engines(3, body)
    assert [last for _, last in results] == [2, 2, 2]
    for step in range(3):
        there = [3 * 2 * (rank + 1) for rank in range(step, 3)]
        total, product = sum(there), int(np.prod(there))
        floats = [total, total / 3, min(there), max(there), product]
        integers = [total, int(total / 3), min(there), max(there), product]
        small = [*integers[:4], int(np.int8(product % 256 - 256 * (product % 256 > 127)))]
        for rank in range(step, 3):
            got = results[rank][0][step]
            assert got[:5] == pytest.approx(floats)
            assert got[5:10] == integers
            assert got[10:15] == small
            assert got[15:17] == [True, 1]
            fused = [3.0 + each for each in range(step, 3)]
            assert got[17:22] == pytest.approx(
                [sum(fused), sum(fused) / 3, min(fused), max(fused), np.prod(fused)]
            )
            assert got[22] == 7 * (3 - step)


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL])
def test_what_needs_every_rank_fails_while_one_has_joined(kind):
    def body(engine):
        if engine.world.rank:
            root = 1 if kind is Kind.BROADCAST else -1
            handle = submit(engine, kind, "x", [np.ones((3, 2))], root=root)
            with pytest.raises(MismatchError, match="joined"):
                handle.wait()
        return engine.join() in (0, 1, 2), engine.join()  # once more

    assert all(first for first, _ in run_engines(3, body))


def test_sets_that_overlap_used_by_several_threads_at_once():
    def body(engine):
        rank = engine.world.rank
        sets = {engine.add_process_set(ranks): ranks for ranks in ([0, 1], [1, 2], [2, 0], [1])}
        mine = [number for number, ranks in sets.items() if rank in ranks]
        errors = []

        def work(number):
            try:
                ranks = sets[number]
                for step in range(20):
                    data = np.full(7, rank + step, np.float32)
                    got = allreduce(engine, "same", data, process_set=number)
                    assert got.tolist() == [sum(ranks) + step * len(ranks)] * 7
                    root = ranks[step % len(ranks)]
                    handle = submit(
                        engine, Kind.BROADCAST, "b", [data], root=root, process_set=number
                    )
                    handle.wait()
                    assert handle.targets[0].owner[0] == root + step
                engine.barrier(number)
            except BaseException as err:
                errors.append(err)

        threads = [threading.Thread(target=work, args=(number,)) for number in mine]
        for thread in threads:
            thread.start()
        for step in range(20):
            assert (
                allreduce(engine, "world", np.ones(3, np.int64) * step).tolist() == [3 * step] * 3
            )
        for thread in threads:
            thread.join(60)
        assert errors == []
        outside = next(number for number, ranks in sets.items() if rank not in ranks)
        with pytest.raises(ProcessSetError):
            allreduce(engine, "x", ONES, process_set=outside)
        removed = [engine.remove_process_set(number) for number in sets]
        with pytest.raises(ProcessSetError):
            allreduce(engine, "x", ONES, process_set=mine[0])
        return removed, engine.process_sets(), list(sets)

    for removed, left, numbers in run_engines(3, body):
        assert removed == [True] * 4
        assert left == {0: (0, 1, 2)}
        assert numbers == [1, 2, 3, 4]


def test_many_threads_in_random_orders():
    def body(engine):
        rank = engine.world.rank
        errors = []

        def work(number):
            try:
                rng = np.random.default_rng(rank * 10 + number)
                for step in range(15):
                    names = [f"{number}.{step}.{each}" for each in range(8)]
                    rng.shuffle(names)
                    handles = {n: submit(engine, Kind.ALLREDUCE, n, [ONES * rank]) for n in names}
                    for name in reversed(names):
                        handles[name].wait()
                        assert handles[name].targets[0].owner[0, 0] == 3
            except BaseException as err:
                errors.append(err)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return errors

    assert run_engines(3, body) == [[]] * 3


def test_not_a_number_is_named_on_every_rank_and_only_when_asked_for():
    def body(engine):
        data = ONES.copy()
        if engine.world.rank == 1:
            data[1, 2] = np.nan
        messages = []
        for kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER):
            with pytest.raises(NonFiniteError) as caught:
                submit(engine, kind, "bad", [ONES, data]).wait()
            messages.append((caught.value.name, caught.value.rank))
            assert f"rank 1: {kind.label} 'bad' at script.py:1 holds NaN" in str(caught.value)
        submit(engine, Kind.ALLGATHER, "bad", [data]).wait()
        return messages, allreduce(engine, "bad", ONES).tolist()

    results = run_engines(2, body, settings=Settings(check_nan=True))
    assert results == [([("bad", 1)] * 2, [[2.0] * 3] * 2)] * 2


def test_a_rank_that_leaves_fails_what_needs_it_and_nothing_else():
    def body(engine):
        pair = engine.add_process_set([0, 1])
        if engine.world.rank == 2:
            engine.stop()
            return True
        with pytest.raises(PeerLeftError, match=r"'x'.*rank 2") as caught:
            allreduce(engine, "x", ONES)
        assert caught.value.rank == 2
        with pytest.raises(PeerLeftError):
            allreduce(engine, "y", ONES)
        return allreduce(engine, "x", ONES, process_set=pair)[0, 0] == 2

    assert all(run_engines(3, body))


def test_a_stall_is_told_once_with_what_the_missing_rank_does(capfd):
    released = threading.Event()

    def waits_for_release():
        assert released.wait(20)

    def body(engine):
        if engine.world.rank == 1:
            waits_for_release()
        handle = submit(engine, Kind.ALLREDUCE, "late", [ONES])
        if engine.world.rank == 0:
            ends_s = time.monotonic() + 15
            while "waits_for_release" not in (text := said()) and time.monotonic() < ends_s:
                threading.Event().wait(0.05)
            released.set()
            handle.wait()
            return text
        handle.wait()
        return ""

    heard = []

    def said():
        heard.append(capfd.readouterr().err)
        return "".join(heard)

    text = run_engines(3, body, settings=Settings(stall_warning_s=2.0))[0]
    assert "[rank 0] stalled: allreduce 'late' has waited" in text
    assert "for rank 1" in text
    assert "ranks 0, 2 have called it at script.py:1" in text
    assert "in waits_for_release" in text
    assert text.count("'late'") == 1


def test_a_stall_ends_the_job_with_the_same_words_on_all_ranks():
    over = threading.Event()

    def body(engine):
        if engine.world.rank == 1:
            assert over.wait(30)
            with pytest.raises(AbortedError, match="'never'") as caught:
                allreduce(engine, "never", ONES)
            return str(caught.value)
        other = submit(engine, Kind.ALLREDUCE, "other", [ONES])
        with pytest.raises((CollectiveTimeoutError, AbortedError), match="'never'") as caught:
            allreduce(engine, "never", ONES)
        over.set()
        with pytest.raises((CollectiveTimeoutError, AbortedError)):
            other.wait()
        with pytest.raises((CollectiveTimeoutError, AbortedError)):
            allreduce(engine, "later", ONES)
        return str(caught.value)

    begun_s = time.monotonic()
    first, *others = run_engines(3, body, settings=Settings(stall_shutdown_s=0.5))
    assert time.monotonic() - begun_s < 10
    assert "has waited" in first
    assert "rank 1 is here" in first
    for text in others:
        assert "has waited" in text


def test_the_deadline_of_collectives_is_that_of_requests():
    def body(engine):
        if engine.world.rank == 1:
            assert over.wait(30)
            return None
        with pytest.raises(CollectiveTimeoutError, match="'never'") as caught:
            allreduce(engine, "never", ONES)
        over.set()
        return caught.value.ranks

    over = threading.Event()
    assert run_engines(2, body, timeout_s=1.0)[0] == (1,)


def test_a_join_waits_for_ranks_that_train_and_not_for_silence():
    over = threading.Event()

    def body(engine):
        if engine.world.rank == 1:
            for step in range(4):  # longer than the deadline, but never silent so long
                assert not threading.Event().wait(0.4)
                allreduce(engine, f"step{step}", ONES)
            assert over.wait(30)
            return None
        with pytest.raises(CollectiveTimeoutError, match="join waits for rank 1") as caught:
            engine.join()
        over.set()
        return caught.value.ranks

    assert run_engines(2, body, timeout_s=1.2) == [(1,), None]


def test_a_join_counts_silence_from_its_own_time():
    """Over several hosts its own message comes back late: nothing was heard for long by then."""

    class Late:
        def __init__(self, journal):
            self.journal, self.left = journal, 3

        def __getattr__(self, name):
            return getattr(self.journal, name)

        def read(self):
            self.left -= 1
            return [] if self.left >= 0 else self.journal.read()

    def body(engine):
        driver = engine._driver
        if engine.world.rank == 0:
            driver._journal = Late(driver._journal)
            driver.heard_s = driver._next_look_s = -1e6  # long ago
        return engine.join() >= 0

    assert run_engines(2, body) == [True, True]


def test_alltoall_refuses_splits_that_do_not_fit():
    def body(engine):
        data = np.ones((3, 2), np.float32)
        for splits, words in [
            ([], "3 rows do not divide evenly among 2 ranks"),
            ([3], "1 splits for 2 ranks"),
            ([1, 1], "make 2 rows, the tensor has 3"),
            ([4, -1], "none below 0"),
        ]:
            with pytest.raises(InvalidBufferError, match=words):
                submit(engine, Kind.ALLTOALL, "x", [data], splits=splits)
        handle = submit(engine, Kind.ALLTOALL, "x", [data], splits=[1, 2])
        handle.wait()
        return handle.received_splits

    assert run_engines(2, body) == [(1, 1), (2, 2)]


def test_one_name_in_two_sets_that_wait_for_each_other_is_found():
    def body(engine):
        other = engine.add_process_set([0, 1])
        number = [0, other, 0][engine.world.rank]
        with pytest.raises(MismatchError, match="'torn'"):
            allreduce(engine, "torn", ONES, process_set=number)
        return allreduce(engine, "torn", ONES).tolist()

    assert run_engines(3, body) == [[[3.0] * 3] * 2] * 3


def test_waiting_inside_a_callback_is_refused():
    def body(engine):
        seen = []

        def waits(handle):
            try:
                submit(engine, Kind.ALLREDUCE, "inner", [ONES]).wait()
            except UsageError as err:
                seen.append(str(err))

        handle = submit(engine, Kind.ALLREDUCE, "outer", [ONES])
        handle.add_done_callback(waits)
        handle.wait()
        engine.barrier()
        return allreduce(engine, "after", ONES)[0, 0], all("'inner'" in text for text in seen)

    for total, is_named in run_engines(2, body):
        assert total == 2
        assert is_named


def test_an_output_that_cannot_be_made_ends_the_job_with_its_reason():
    def body(engine):
        def fails(shape):
            raise MemoryError(f"no room for {shape}")

        source = view(ONES, "g")
        request = Request("g", Kind.ALLGATHER, (Member(source.dtype, source.shape),))
        makes = fails if engine.world.rank == 1 else lambda shape: view(np.empty(shape, "f4"), "g")
        with pytest.raises(AbortedError, match=r"rank 1: .*MemoryError: no room for \(4, 3\)"):
            engine.submit(request, [Part(source, allocate=makes)]).wait()
        with pytest.raises(AbortedError, match="no room"):
            engine.barrier()
        return True

    assert run_engines(2, body) == [True, True]
