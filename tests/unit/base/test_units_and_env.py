import re

import pytest
from support.places import ROOT

from blinkrun import env
from blinkrun.errors import UsageError
from blinkrun.units import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("4", 4),
        ("1k", 1024),
        ("16K", 16384),
        ("1.5M", 3 << 19),
        ("2GiB", 2 << 30),
        ("1 TB", 1 << 40),
        (" 7B ", 7),
    ],
)
def test_sizes(text, num_bytes):
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "K", "-1", "4X", "1.5", "0.3K", "1e3", "four"])
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match=r"size|bytes"):
        parse_size(text)


@pytest.mark.parametrize("num_bytes", [0, 1, 1023, 1024, 1025, 3 << 20, 5 << 30, 7 << 40, 1 << 55])
def test_formatted_sizes_are_read_back(num_bytes):
    assert parse_size(format_size(num_bytes)) == num_bytes


def test_timeout():
    assert env.timeout_s({}) == env.DEFAULT_TIMEOUT_S
    assert env.timeout_s({env.TIMEOUT: "2.5"}) == 2.5
    for wrong in ("soon", "0", "-1", "nan"):
        with pytest.raises(UsageError, match=f"{env.TIMEOUT}={wrong}"):
            env.timeout_s({env.TIMEOUT: wrong})


def test_size_variables_name_themselves_in_errors():
    assert env.size_bytes(env.ARENA, 7, {}) == 7
    assert env.size_bytes(env.ARENA, 7, {env.ARENA: "2M"}) == 2 << 20
    with pytest.raises(UsageError, match=f"{env.ARENA}: 'big' is no size"):
        env.size_bytes(env.ARENA, 7, {env.ARENA: "big"})


def test_a_count_is_no_size():
    """'-1 is no size; write bytes' was said of a number of steps."""
    name = env.CHECK_PARAMETERS
    assert env.count(name, 7, {}) == 7
    assert env.count(name, 7, {name: "100"}) == 100
    for text in ("-1", "1.5", "2K", "many"):
        with pytest.raises(UsageError, match=f"{name}={text}: need a whole number"):
            env.count(name, 7, {name: text})


@pytest.mark.parametrize(
    ("text", "on"), [("", False), ("0", False), ("OFF", False), ("no", False), ("1", True)]
)
def test_switches(text, on):
    assert env.is_on(env.VERBOSE, {env.VERBOSE: text}) is on


def _read_variables():
    """Every variable that the packages read or set, by their sources."""
    files = [path for part in ("blinkrun", "launcher") for path in (ROOT / part).rglob("*.py")]
    files += (ROOT / "blinkrun/csrc").glob("group*.cpp")
    names = re.compile(r'"(BLINKRUN_[A-Z0-9_]+)"')
    found = {name for path in files for name in names.findall(path.read_text())}
    return found - {"BLINKRUN_TIMOUT_S", "BLINKRUN_RUNS_OF_MINE"}  # of an example


def test_a_variable_that_is_read_is_never_taken_for_a_mistake():
    names = _read_variables()
    assert len(names) > 30
    assert env.mistyped(dict.fromkeys(names, "1")) == {}


@pytest.mark.parametrize("name", [env.TIMEOUT, env.CHECK_NAN, env.HOST, env.TIMELINE_CYCLES])
def test_a_letter_left_out_or_changed_is_told(name):
    at = len(name) - 2
    for text in (name[:at] + name[at + 1 :], name[:at] + "X" + name[at + 1 :]):
        assert env.mistyped({text: "1"}).keys() == {text}


def test_what_is_like_none_of_ours_is_the_programs_own():
    assert env.mistyped({"BLINKRUN_RUNS_OF_MINE": "7", "BLINKRUN": "", "TIMEOUT_S": "3"}) == {}
