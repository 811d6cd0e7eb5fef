"""What kernels report becomes a line that names call, rank, channel, chunk and peer."""

import pytest

from blinkrun.errors import MismatchError
from blinkrun.executors.device_errors import ABORTED, TIMEOUT, describe, trouble_of
from blinkrun.executors.device_layout import Code, Desc, Report

NAMES, EVERYONE = [4, 6], [4, 6, 8]
CALL = Desc(count=7, collective=0, dtype=6, op=0)


def trouble(report):
    return trouble_of(report, rank=6, names=NAMES, everyone=EVERYONE, timeout_s=2.5)


def test_calls_that_differ_are_told_by_rank():
    report = Report(code=Code.MISMATCH, seq=3, channel=-1, desc=CALL, size=2)
    report.descs[0] = CALL
    report.descs[1] = Desc(count=9, collective=1, dtype=7, root=2, scales=5)
    found = trouble(report)
    assert found.kind == 0  # the group goes on
    assert isinstance(found.error(), MismatchError)
    assert found.text == (
        "call 3 differs between ranks: rank 4: allreduce of 7 float32 (sum); rank 6: broadcast of 9"
        " float64 with root 8 with other scales; every rank must make the same call"
    )


def test_at_entry_the_missing_ranks_are_named():
    report = Report(code=Code.TIMEOUT, seq=3, channel=-1, missing=1, desc=CALL)
    found = trouble(report)
    assert (found.kind, found.about) == (TIMEOUT, 4)
    assert found.text.startswith(
        "rank 6 waited 2.5 s in allreduce of 7 float32 (sum), call 3 on its device for rank 4;"
    )


def test_in_a_channel_place_and_peer_are_named():
    where = {"channel": 2, "piece": 1, "chunk": 5, "step": 3}
    flag = Report(code=Code.TIMEOUT, seq=1, desc=CALL, kind=0, peer=0, flag=11, **where)
    assert "for rank 4 (channel 2, piece 1, chunk 5, step 3, flag 11)" in trouble(flag).text
    message = Report(code=Code.TIMEOUT, seq=1, desc=CALL, kind=6, peer=2, flag=1, **where)
    assert "for rank 8 (channel 2, piece 1, chunk 5, step 3, message stream 1)" in (
        trouble(message).text
    )
    assert trouble(message).about == 8


@pytest.mark.parametrize("code", [Code.ABORTED, Code.NO_PROGRAM, Code.NO_ROOM])
def test_other_ends_name_rank_and_call(code):
    found = trouble(Report(code=code, seq=9, desc=CALL))
    assert (found.kind, found.about) == (ABORTED, 6)
    assert "rank 6" in found.text
    assert describe(CALL, EVERYONE) in found.text
