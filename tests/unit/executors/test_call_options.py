"""Calls without spinning, timed channels, and copies into and out of one buffer."""

import time

import numpy as np
import pytest
from support.programs import chain_plan, star_plan
from support.threads import run_threads

from blinkrun.calls import make_request
from blinkrun.communicator import Communicator
from blinkrun.types import Collective

SIZE = 3


@pytest.mark.parametrize("may_spin", [False, True])
@pytest.mark.parametrize("count", [0, 1, 1009, 100_003])
def test_a_call_without_spinning_gives_the_same(may_spin, count):
    def body(comm):
        x = np.arange(count, dtype=np.float32) * (comm.rank + 1)
        out = np.empty_like(x)
        request = make_request(Collective.ALLREDUCE, x, out, size=comm.size)
        comm.run_request(request, may_spin=may_spin)
        return out

    for out in run_threads(star_plan(SIZE), body):
        assert np.array_equal(out, np.arange(count, dtype=np.float32) * 6)


@pytest.mark.parametrize("count", [1, 100_003])
@pytest.mark.parametrize("plan", [star_plan(SIZE), chain_plan(SIZE)], ids=["stars", "chains"])
def test_channels_tell_when_they_moved_bytes(plan, count):
    def body(comm):
        group = comm.executor.group
        x = np.ones(count, np.float32)
        comm.allreduce(x)
        untraced = group.last_channels()
        group.set_traced(True)
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        comm.allreduce(x)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        traced = group.last_channels()
        group.set_traced(False)
        comm.allreduce(x)
        assert group.last_channels() == traced
        assert untraced == []
        for start, stop, first_ns, last_ns in traced:
            assert start < stop
            assert before <= first_ns <= last_ns <= after
        return sum(stop - start for start, stop, *_ in traced)

    shares = run_threads(plan, body)
    assert sum(shares) > 0
    if count > SIZE:
        assert all(share > 0 for share in shares)


@pytest.mark.parametrize("sizes", [[], [0], [1, 0, 7], [4099, 1, 64], [1_000_003, 13, 70_001]])
def test_packed_parts_come_back(sizes):
    parts = [np.frombuffer(bytes(i % 251 for i in range(n)), np.uint8) for n in sizes]
    offsets = [int(at) * 3 for at in np.cumsum([0, *sizes])]  # gaps between them
    packed = np.full(offsets[-1] + 8, 255, np.uint8)
    expected = packed.copy()
    for part, at in zip(parts, offsets, strict=False):
        expected[at : at + part.size] = part
    places = zip((p.ctypes.data for p in parts), sizes, offsets, strict=False)
    Communicator.pack(packed.ctypes.data, list(places))
    assert np.array_equal(packed, expected)
    back = [np.zeros_like(part) for part in parts]
    places = zip((b.ctypes.data for b in back), sizes, offsets, strict=False)
    Communicator.unpack(packed.ctypes.data, tuple(places))
    assert all(np.array_equal(a, b) for a, b in zip(parts, back, strict=True))


@pytest.mark.parametrize("parts", [[(1, 2)], [[1, 2, 3]], [(0, "one", 0)], [(-1, 1, 0)], [None]])
def test_parts_that_are_none_are_refused(parts):
    target = np.zeros(8, np.uint8)
    with pytest.raises((ValueError, TypeError, OverflowError)):
        Communicator.pack(target.ctypes.data, parts)
    assert not target.any()
