import importlib.util

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow"
)


class FakeHandle:
    def __init__(self):
        self.calls = []
        self.is_done = False

    def add_done_callback(self, call):
        self.calls.append(call)
        if self.is_done:
            self.finish()

    def finish(self):
        self.is_done = True
        while self.calls:
            self.calls.pop()(self)


class FakeCall:
    """A call that a test ends."""

    def __init__(self, log, name, *, fails=False):
        self.log = log
        self.name = name
        self.fails = fails
        self.handle = FakeHandle()

    def __call__(self):
        self.log.append(self.name)
        if self.fails:
            raise ValueError(self.name)
        return self

    def wait(self):
        assert self.handle.is_done
        return [self.name]


@pytest.fixture
def in_turn():
    from blinkrun.tf import ops_turns

    yield ops_turns.in_turn
    assert not ops_turns._lines, "somebody still waits"


def test_calls_of_one_name_begin_one_after_the_other(in_turn):
    log = []
    calls = [FakeCall(log, number) for number in range(4)]
    started = [in_turn((0, "x"), call) for call in calls]
    for number, call in enumerate(calls):
        assert log == list(range(number + 1))
        call.handle.finish()
        assert started[number].wait() == [number]


def test_calls_of_other_names_and_sets_do_not_wait(in_turn):
    log = []
    calls = {key: FakeCall(log, key) for key in ((0, "x"), (0, "y"), (1, "x"))}
    for key, call in calls.items():
        in_turn(key, call)
    assert log == list(calls)
    for call in calls.values():
        call.handle.finish()


def test_one_that_cannot_begin_lets_the_next_begin(in_turn):
    log = []
    first, second = FakeCall(log, "first"), FakeCall(log, "second", fails=True)
    third = FakeCall(log, "third")
    _, waiting, last = [in_turn((0, "x"), each) for each in (first, second, third)]
    told = []
    waiting.add_done_callback(lambda: told.append("second"))
    first.handle.finish()
    assert log == ["first", "second", "third"]
    assert told == ["second"]
    with pytest.raises(ValueError, match="second"):
        waiting.wait()
    third.handle.finish()
    assert last.wait() == ["third"]


def test_what_the_first_raises_is_raised_at_once(in_turn):
    with pytest.raises(ValueError, match="alone"):
        in_turn((0, "x"), FakeCall([], "alone", fails=True))
    call = FakeCall([], "next")
    assert in_turn((0, "x"), call) is call
    call.handle.finish()


def test_who_asks_is_told_when_a_waiting_call_is_through(in_turn):
    log, told = [], []
    first, second = FakeCall(log, "first"), FakeCall(log, "second")
    in_turn((0, "x"), first)
    later = in_turn((0, "x"), second)
    later.add_done_callback(lambda: told.append("before"))
    first.handle.finish()
    later.add_done_callback(lambda: told.append("after"))
    assert told == []
    second.handle.finish()
    assert sorted(told) == ["after", "before"]
    assert later.wait() == ["second"]
