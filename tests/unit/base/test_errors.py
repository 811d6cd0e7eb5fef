"""Errors carry fields, and are what scripts written for other libraries catch."""

import inspect

import pytest

from blinkrun import errors


def test_all_derive_from_one_class():
    classes = [
        c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__
    ]
    assert len(classes) > 10
    assert all(issubclass(c, errors.BlinkrunError) for c in classes)


@pytest.mark.parametrize(
    ("error", "also", "fields"),
    [
        (errors.MismatchError("differs", {0: "a"}), RuntimeError, {"calls": {0: "a"}}),
        (
            errors.CollectiveTimeoutError("late", [1], 2.0),
            RuntimeError,
            {"ranks": (1,), "timeout_s": 2.0},
        ),
        (errors.PeerLeftError("gone", 3), RuntimeError, {"rank": 3}),
        (errors.AbortedError("ended", 4), RuntimeError, {"rank": 4}),
        (errors.UnreachableRankError(0, 5), ValueError, {"root": 0, "rank": 5}),
        (errors.InvalidBufferError("bad"), ValueError, {}),
        (errors.UsageError("bad"), ValueError, {}),
        (errors.LaunchError("bad"), RuntimeError, {}),
    ],
)
def test_fields_and_bases(error, also, fields):
    assert isinstance(error, also)
    assert {name: getattr(error, name) for name in fields} == fields
    assert "\n" not in str(error)


def test_messages_say_what_to_do():
    assert "blinkrun.init() first" in str(errors.NotInitializedError("allreduce"))
    assert "please report" in str(errors.InternalError("lost a chunk"))
