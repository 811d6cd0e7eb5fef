"""What Horovod's variables and options mean to the launcher."""

from __future__ import annotations

import re

import pytest

from blinkrun import env
from blinkrun.errors import UsageError
from blinkrun.launcher.horovod import (
    IGNORED,
    RENAMED,
    SETTINGS,
    alias_folder,
    translate,
    with_alias,
)
from blinkrun.launcher.options import OF_MPIEXEC, OPTION_NAMES


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({}, {}),
        ({"HOROVOD_FUSION_THRESHOLD": "67108864"}, {env.FUSION: "67108864"}),
        ({"HOROVOD_FUSION_THRESHOLD": "0"}, {env.FUSION: "0"}),
        ({"HOROVOD_CACHE_CAPACITY": "1024"}, {env.RESPONSE_CACHE: "1024"}),
        ({"HOROVOD_TIMELINE": "/t.json"}, {env.TIMELINE: "/t.json"}),
        ({"HOROVOD_TIMELINE": "DYNAMIC"}, {}),
        ({"HOROVOD_TIMELINE": ""}, {}),
        ({"HOROVOD_TIMELINE_MARK_CYCLES": "1"}, {env.TIMELINE_CYCLES: "1"}),
        ({"HOROVOD_TIMELINE_MARK_CYCLES": "0"}, {}),
        ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "30"}, {env.STALL_WARNING: "30"}),
        ({"HOROVOD_STALL_CHECK_DISABLE": "1"}, {env.STALL_WARNING: "0"}),
        (
            {"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "30"},
            {env.STALL_WARNING: "0"},
        ),
        (
            {"HOROVOD_STALL_CHECK_DISABLE": "0", "HOROVOD_STALL_CHECK_TIME_SECONDS": "30"},
            {env.STALL_WARNING: "30"},
        ),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90"}, {env.STALL_SHUTDOWN: "90"}),
        ({"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"}, {env.TIMEOUT: "5"}),
        ({"HOROVOD_GLOO_TIMEOUT_SECONDS": "0"}, {}),
        ({"HOROVOD_TIMELINE": "/t.json", env.TIMELINE: "/ours.json"}, {}),
    ],
)
def test_variables_that_mean_something(given: dict[str, str], settings: dict[str, str]) -> None:
    assert translate(given).settings == settings
    assert translate(given).ignored == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOROVOD_CACHE_CAPACITY", "many"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "-1"),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "nan"),
        ("HOROVOD_FUSION_THRESHOLD", "a lot"),
    ],
)
def test_a_value_that_means_nothing_is_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{name}={value} means nothing"):
        translate({name: value})


def test_what_has_no_effect_comes_with_its_reason() -> None:
    ignored = translate({"HOROVOD_CYCLE_TIME": "5", "HOROVOD_NEW": "1", "PATH": "/bin"}).ignored
    assert list(ignored) == ["HOROVOD_CYCLE_TIME", "HOROVOD_NEW"]
    assert "cycles" in ignored["HOROVOD_CYCLE_TIME"]
    assert ignored["HOROVOD_NEW"] == "not a variable that blinkrun knows"
    assert translate({"HOROVOD_WITH_MPI": "1"}).ignored == {}  # read when Horovod is built
    assert not set(IGNORED) & set(SETTINGS)


def test_the_alias_comes_first_on_the_path() -> None:
    assert with_alias("") == alias_folder()
    assert with_alias("/a:/b") == f"{alias_folder()}:/a:/b"


def test_options_of_horovodrun_are_not_ours() -> None:
    known = {*OPTION_NAMES, *OF_MPIEXEC}
    assert not set(RENAMED) & known
    for reason in RENAMED.values():
        ours = re.sub(r"'.*?'", "", reason)  # what is in quotes is for ssh
        named = [word.strip("(),;") for word in ours.split() if word.startswith(("-", "(-"))]
        assert set(named) <= known, reason
