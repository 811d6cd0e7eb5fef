from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blinkrun.engine.events import Entry
from blinkrun.engine.fusion import FusionPlans, plan_fusion
from blinkrun.engine.request import ADASUM, Kind, Member, Request
from blinkrun.errors import UsageError
from blinkrun.types import DType, Op

DTYPES = [DType.FLOAT32, DType.BFLOAT16, DType.INT64]


def entry(name, *members, kind=Kind.ALLREDUCE, **more):
    shapes = tuple(Member(DType.FLOAT32, (m,)) if isinstance(m, int) else m for m in members)
    request = Request(name, kind, shapes, **more)
    return Entry(request, (request,), True)


@st.composite
def entries(draw):
    drawn = []
    for number in range(draw(st.integers(0, 12))):
        members = draw(
            st.lists(
                st.builds(
                    Member, st.sampled_from(DTYPES), st.tuples(st.integers(0, 40), st.just(2))
                ),
                max_size=3,
            )
        )
        drawn.append(
            entry(
                f"t{number}",
                *members,
                kind=draw(st.sampled_from([Kind.ALLREDUCE] * 4 + [Kind.ALLGATHER, Kind.BARRIER])),
                op=draw(st.sampled_from([Op.SUM, Op.SUM, Op.MAX, ADASUM])),
                scales=(draw(st.sampled_from([1.0, 0.5])), 1.0),
                process_set=draw(st.integers(0, 1)),
            )
        )
    return drawn


def bytes_of(batch, at):
    one, member = batch.members[at]
    shape = one.request.members[member].shape
    return shape[0] * shape[1] * one.request.members[member].dtype.itemsize


@given(entries(), st.integers(0, 800), st.integers(1, 800))
@settings(max_examples=40)
def test_every_tensor_travels_once_with_its_like_and_in_order(given_entries, fusion_bytes, largest):
    batches = plan_fusion(given_entries, fusion_bytes=fusion_bytes, largest=largest)
    travelled = [(each.request.name, member) for b in batches for each, member in b.members]
    wanted = [
        (each.request.name, member)
        for each in given_entries
        for member in range(len(each.request.members))
    ]
    assert sorted(travelled) == sorted(wanted)
    position = {each.request.name: at for at, each in enumerate(given_entries)}
    firsts = [position[b.entry.request.name] for b in batches]
    assert firsts == sorted(firsts)
    for batch in batches:
        sizes = [bytes_of(batch, at) for at in range(len(batch.members))]
        assert batch.offsets == tuple(sum(sizes[:at]) for at in range(len(sizes)))
        assert batch.num_bytes == sum(sizes)
        requests = {each.request.name: each.request for each, _ in batch.members}
        reduces = batch.kind is Kind.ALLREDUCE and batch.op != ADASUM
        if len(requests) > 1 or (reduces and len(sizes) > 1):
            assert reduces
            assert batch.num_bytes <= fusion_bytes
            assert max(sizes) < largest
            like = {(r.kind, r.op, r.scales, r.process_set, r.device) for r in requests.values()}
            assert like == {(batch.kind, batch.op, batch.scales, batch.process_set, batch.device)}
            dtypes = {each.request.members[m].dtype for each, m in batch.members}
            assert dtypes == {batch.dtype}
    alone = [
        e for e in given_entries if e.request.kind is not Kind.ALLREDUCE or e.request.op == ADASUM
    ]
    assert sum(b.kind is not Kind.ALLREDUCE or b.op == ADASUM for b in batches) == len(alone)


def test_small_tensors_share_a_call_until_it_is_full():
    ten = [entry(f"t{number}", 25) for number in range(10)]  # 100 bytes each
    assert [len(b.members) for b in plan_fusion(ten, fusion_bytes=400, largest=1000)] == [4, 4, 2]
    assert len(plan_fusion(ten, fusion_bytes=1 << 20, largest=1000)) == 1
    assert len(plan_fusion(ten, fusion_bytes=0, largest=1000)) == 10
    assert len(plan_fusion(ten, fusion_bytes=1 << 20, largest=100)) == 10
    assert len(plan_fusion(ten, fusion_bytes=1 << 20, largest=101)) == 1


def test_tensors_between_others_still_share():
    mixed = [
        entry("a", 4),
        entry("big", 1000),
        entry("b", 4),
        entry("c", 4, op=Op.MAX),
        entry("d", 4),
    ]
    batches = plan_fusion(mixed, fusion_bytes=1000, largest=1000)
    names = [[each.request.name for each, _ in batch.members] for batch in batches]
    assert names == [["a", "b", "d"], ["big"], ["c"]]


def test_members_of_a_group_are_fused_with_others():
    batches = plan_fusion([entry("a", 4), entry("g", 4, 4)], fusion_bytes=1000, largest=1000)
    assert [(e.request.name, m) for e, m in batches[0].members] == [("a", 0), ("g", 0), ("g", 1)]


def test_a_request_without_tensors_is_a_batch():
    (batch,) = plan_fusion([entry("b", kind=Kind.BARRIER)], fusion_bytes=9, largest=9)
    assert (batch.members, batch.dtype, batch.num_bytes) == ((), None, 0)
    assert batch.entry.request.name == "b"
    (batch,) = plan_fusion([entry("none")], fusion_bytes=9, largest=9)  # an empty group
    assert (batch.members, batch.entry.request.name) == ((), "none")


def test_empty_tensors_are_fused_but_not_when_nothing_is():
    empty = [entry("a", 0), entry("b", 0)]
    assert len(plan_fusion(empty, fusion_bytes=1, largest=1)) == 1
    assert len(plan_fusion(empty, fusion_bytes=0, largest=1)) == 2


def test_a_negative_size_is_refused():
    with pytest.raises(UsageError, match="fusion_bytes is -1"):
        plan_fusion([], fusion_bytes=-1, largest=1)


def test_a_repeated_step_is_planned_once():
    plans = FusionPlans(fusion_bytes=1000, largest=1000, capacity=3)
    step = tuple(entry(f"t{number}", 4) for number in range(5))
    batches = plans.plan(step)
    assert batches == plan_fusion(step, fusion_bytes=1000, largest=1000)
    assert plans.plan(tuple(step)) is batches
    equal = tuple(replace(each) for each in step)  # other objects: planned anew, to the same end
    assert plans.plan(equal) == batches
    assert plans.plan(equal) is not batches
    for number in range(10):  # entries that come once do not pile up
        plans.plan((entry(f"once{number}", 4),))
    assert plans.plan(step) == batches


def test_an_entry_is_not_taken_for_one_that_is_gone():
    """What comes once is freed, and the next entry may lie where it was."""
    plans = FusionPlans(fusion_bytes=1000, largest=1000)
    for number in range(100):
        (batch,) = plans.plan((entry(f"t{number}", number),))
        assert (batch.entry.request.name, batch.num_bytes) == (f"t{number}", 4 * number)
        del batch
