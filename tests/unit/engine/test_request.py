import dataclasses

import pytest

from blinkrun.engine.request import WORLD, Kind, Member, Request
from blinkrun.errors import UsageError
from blinkrun.types import DType, Op


def test_a_request_needs_a_name():
    with pytest.raises(UsageError, match="name"):
        Request("", Kind.BARRIER)


def test_a_request_asks_for_a_plain_sum_of_the_world_unless_it_says_more():
    request = Request("x", Kind.ALLREDUCE, (Member(DType.INT32, (2,)),))
    assert (request.process_set, request.op, request.scales) == (WORLD, Op.SUM, (1.0, 1.0))


def test_requests_are_values():
    one = Request("x", Kind.ALLREDUCE, (Member(DType.INT32, (2,)),))
    assert one == dataclasses.replace(one)
    assert hash(one) == hash(dataclasses.replace(one))
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "y"


def test_kinds_are_spelled_in_lower_case():
    assert [kind.label for kind in (Kind.ALLREDUCE, Kind.ADD_SET)] == ["allreduce", "add_set"]
