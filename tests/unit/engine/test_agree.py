"""Every way in which ranks can disagree, and what they are told."""

from dataclasses import replace

import pytest
from support.negotiators import tensor

from blinkrun.engine.agree import describe, find_disagreement, is_repeat, name_ranks
from blinkrun.engine.request import ADASUM, Kind, Member, Request
from blinkrun.errors import MismatchError, ProcessSetError
from blinkrun.types import DType, Op

X = tensor("layer4.weight", 64, 4, where="train.py:31")
GROUP = Request("g", Kind.ALLREDUCE, (Member(DType.FLOAT32, (2,)), Member(DType.INT32, (3,))))


def told(*requests, ranks=None):
    error = find_disagreement(ranks or range(len(requests)), requests)
    return "" if error is None else str(error)


def test_the_message_names_tensor_ranks_values_and_lines():
    other = tensor("layer4.weight", 64, 3, where="train.py:35")
    error = find_disagreement(range(4), [X, X, X, other])
    assert isinstance(error, MismatchError)
    assert str(error) == (
        "rank 3: allreduce 'layer4.weight' has shape (64, 3), rank 0 has (64, 4); every rank must"
        " call it with the same shape (rank 0 called at train.py:31, rank 3 at train.py:35)"
    )
    assert error.calls[3] == "allreduce 'layer4.weight' float32 (64, 3) sum at train.py:35"
    assert sorted(error.calls) == [0, 1, 2, 3]


def test_ranks_that_are_wrong_alike_are_named_together():
    other = replace(X, members=(Member(DType.FLOAT32, (1,)),), where="")
    assert told(X, other, other, other, ranks=[2, 3, 4, 7]).startswith("ranks 3, 4, 7: ")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(X, kind=Kind.BARRIER), "rank 1: barrier 'layer4.weight', rank 0 calls allreduce"),
        (
            replace(X, members=(Member(DType.INT64, (64, 4)),)),
            "has dtype int64, rank 0 has float32",
        ),
        (
            replace(X, members=(Member(DType.FLOAT32, (256,)),)),
            "has shape (256,), rank 0 has (64, 4)",
        ),
        (replace(X, members=X.members * 2), "has 2 tensors, rank 0 has 1"),
        (replace(X, op=Op.MAX), "has op max, rank 0 has sum"),
        (replace(X, op=ADASUM), "has op adasum, rank 0 has sum"),
        (replace(X, scales=(0.5, 1.0)), "has scale factors (0.5, 1.0), rank 0 has (1.0, 1.0)"),
        (replace(X, device="cuda:0"), "has device cuda:0, rank 0 has cpu"),
    ],
)
def test_each_field_of_an_allreduce_is_compared(other, words):
    assert words in told(X, other)
    assert "rank 0 called at train.py:31, rank 1 at train.py:31" in told(X, other)
    assert told(other, other) == ""


def test_factors_that_are_not_a_number_are_the_same_on_all_ranks():
    """Ranks that all gave nan were told that they differ."""
    one, same = (replace(X, scales=(float("nan"), 1.0)) for _ in range(2))
    assert told(one, same) == ""
    assert "has scale factors (1.0, 1.0), rank 0 has (nan, 1.0)" in told(one, X)


@pytest.mark.parametrize(
    ("kind", "field", "words"),
    [
        (Kind.BROADCAST, {"root": 1}, "has root 1, rank 0 has 0"),
        (Kind.ALLTOALL, {"splits": (1, 2)}, "has number of splits 2, rank 0 has 0"),
        (Kind.REDUCESCATTER, {"op": Op.MIN}, "has op min, rank 0 has sum"),
        (Kind.ADD_SET, {"ranks": (0, 1)}, "has process set (0, 1), rank 0 has ()"),
    ],
)
def test_what_a_kind_needs_is_compared(kind, field, words):
    one = Request("x", kind, root=0)
    assert words in told(one, replace(one, **field))


def test_what_a_kind_does_not_need_is_not_compared():
    barrier = Request("x", Kind.BARRIER)
    assert told(barrier, replace(barrier, op=Op.MAX, root=3, where="elsewhere.py:1")) == ""


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLTOALL])
def test_only_the_first_dimension_of_what_is_gathered_may_differ(kind):
    def of(*shape):
        return tensor("x", *shape, kind=kind)

    assert told(of(2, 3), of(5, 3), of(0, 3)) == ""
    assert told(of(), of(1), of(4)) == ""
    text = told(of(2, 3), of(2, 4))
    assert "has shape (2, 4), rank 0 has (2, 3)" in text
    assert "the same shape but for the first dimension" in text
    assert "shape" in told(of(2, 3), of(2, 3, 1))


@pytest.mark.parametrize("kind", [Kind.ALLREDUCE, Kind.BROADCAST, Kind.REDUCESCATTER])
def test_all_dimensions_of_other_kinds_must_agree(kind):
    assert "shape" in told(*(tensor("x", rows, 3, kind=kind, root=0) for rows in (1, 2)))


def test_the_tensor_of_a_group_is_named():
    other = replace(GROUP, members=(GROUP.members[0], Member(DType.INT64, (3,))))
    assert "rank 1: allreduce 'g' has dtype of tensor 1 int64, rank 0 has int32" in told(
        GROUP, other
    )
    other = replace(GROUP, members=(GROUP.members[0], Member(DType.INT32, (9,))))
    assert "has shape of tensor 1 (9,), rank 0 has (3,)" in told(GROUP, other)


def test_the_root_of_a_broadcast_must_be_in_the_set():
    request = tensor("x", 2, kind=Kind.BROADCAST, root=1, process_set=3)
    error = find_disagreement((0, 2), [request, request])
    assert isinstance(error, ProcessSetError)
    assert "root 1 is not in process set 3 of ranks 0, 2" in str(error)
    assert told(request, request, ranks=[1, 2]) == ""


def test_a_repeat_is_the_same_but_for_its_line():
    assert is_repeat(X, replace(X, where="other.py:1"))
    assert not is_repeat(None, X)
    for change in [
        {"kind": Kind.BARRIER},
        {"members": GROUP.members},
        {"op": Op.MAX},
        {"root": 1},
        {"scales": (2.0, 1.0)},
        {"splits": (1,)},
        {"device": "cuda:0"},
        {"ranks": (1,)},
    ]:
        assert not is_repeat(X, replace(X, **change))


def test_a_large_group_is_described_in_short():
    request = Request("g", Kind.ALLREDUCE, (Member(DType.FLOAT32, (2,)),) * 500)
    assert describe(request).endswith("and 497 more sum")
    assert describe(tensor("x", 2, kind=Kind.BROADCAST, root=3)) == (
        "broadcast 'x' float32 (2,) root 3"
    )


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([0], "rank 0"),
        ([1, 0], "ranks 0, 1"),
        ([5, 6, 7, 8, 2], "ranks 2, 5-8"),
        ([0, 1, 2], "ranks 0-2"),
    ],
)
def test_ranks_are_spelled_in_runs(ranks, words):
    assert name_ranks(ranks) == words
