import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.negotiators import tensor

from blinkrun.engine.cache import ResponseCache
from blinkrun.engine.events import Entry
from blinkrun.engine.messages import decode, encode, pack_slots, unpack, unpack_slots
from blinkrun.engine.request import ADASUM, Kind, Member, Request
from blinkrun.types import DType, Op


class Shape(tuple):
    """A tuple that is not just a tuple, as torch's sizes are."""

    __slots__ = ()


@given(st.sets(st.integers(0, 8191), min_size=1, max_size=300))
def test_slots_come_out_as_they_went_in(slots):
    assert sorted(unpack_slots(pack_slots(sorted(slots)))) == sorted(slots)


@given(st.sets(st.integers(0, 8191), min_size=1, max_size=300))
def test_slots_take_no_more_than_they_must(slots):
    size = len(encode([(0, 0, pack_slots(sorted(slots)))], [], []))
    assert size < 60 + min(5 * len(slots), max(slots) // 7 + 8)


FULL = Request(
    "layer.weight",
    Kind.ALLTOALL,
    (Member(DType.BFLOAT16, (3, 0, 7)), Member(DType.BOOL, ())),
    process_set=4,
    op=ADASUM,
    root=2,
    scales=(0.5, 3.0),
    splits=(1, 2),
    device="cuda:1",
    ranks=(0, 2),
    where="train.py:31",
)


def test_every_field_of_a_request_travels():
    _, (packed,), _ = decode(encode([], [FULL], []))
    assert unpack(packed) == FULL
    assert type(unpack(packed).kind) is Kind
    assert type(unpack(packed).members[0].dtype) is DType


def test_numbers_of_other_libraries_travel_as_numbers():
    loose = Request(
        "x",
        Kind.ALLREDUCE,
        (Member(DType.FLOAT32, Shape((np.int64(2), 3))),),
        op=Op.MAX,
        scales=(np.float64(0.5), 2),
        splits=(np.int32(4),),
    )
    _, (packed,), _ = decode(encode([], [loose], [(2, b"note")]))
    request = unpack(packed)
    assert request == loose
    assert {type(length) for length in request.members[0].shape} == {int}
    assert {type(scale) for scale in request.scales} == {float}


def stored(cache, name, *shapes):
    requests = [tensor(name, *shape) if shape is not None else None for shape in shapes]
    first = next(request for request in requests if request is not None)
    entry = Entry(first, tuple(requests), True)
    cache.store(name, requests, entry)
    return entry


def test_a_cache_knows_what_completed_last():
    cache = ResponseCache(8)
    assert cache.find("x") is None
    stored(cache, "x", (2,), (2,))
    last = stored(cache, "x", (3,), (3,))
    known = cache.find("x")
    assert known.entry is last
    assert cache.readable(known.generation)[known.slot] is known
    assert len(cache) == 1


def test_a_rank_that_had_joined_keeps_its_last_request_but_must_be_compared():
    cache = ResponseCache(8)
    stored(cache, "x", (2,), (2,))
    stored(cache, "x", (3,), None)
    known = cache.find("x")
    assert [request.members[0].shape for request in known.requests] == [(3,), (2,)]
    assert known.entry is None


@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_a_cache_stays_within_two_generations(capacity):
    cache = ResponseCache(capacity)
    for number in range(40):
        stored(cache, f"t{number % 17}", (2,))
        assert len(cache) <= 2 * capacity


def test_no_slot_ever_stands_for_two_names():
    cache = ResponseCache(2)
    names = {}
    for number in [0, 1, 2, 0, 3, 1, 4, 4, 2, 5, 0, 1]:
        stored(cache, f"t{number}", (2,))
        known = cache.find(f"t{number}")
        slot = (known.generation, known.slot)
        assert names.setdefault(slot, known.name) == known.name
        for (generation, position), name in names.items():
            lines = cache.readable(generation)
            assert lines is None or lines[position].name == name


def test_what_is_in_use_outlives_what_is_not():
    cache = ResponseCache(4)
    stored(cache, "used", (2,))
    for number in range(50):
        stored(cache, f"once{number}", (2,))
        cache.keep(cache.find("used"))
    assert cache.find("used") is not None
    assert cache.find("once3") is None
