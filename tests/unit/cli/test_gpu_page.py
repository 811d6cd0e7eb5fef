"""The page on GPUs: messages that it explains exist, and so do variables and options."""

import ast
import re

import pytest
from support.places import ROOT

from blinkrun import env
from blinkrun.launcher.options import OPTION_NAMES
from blinkrun.topology.devices import DeviceLinks

PAGE = (ROOT / "docs/gpu.md").read_text()


def constants():
    """All texts in the package, as the compiler joins them."""
    for path in (ROOT / "blinkrun").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def messages():
    table = PAGE.partition("| message | what to do |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield from re.findall(r"`([^`]+)`", line.split(" | ")[0])


@pytest.fixture(scope="module")
def texts():
    return "\0".join(constants())


@pytest.mark.parametrize("message", list(messages()))
def test_messages_that_are_explained_are_there(texts, message):
    assert message in texts


def test_variables_are_those_that_are_read():
    known = {value for value in vars(env).values() if isinstance(value, str)}
    named = set(re.findall(r"BLINKRUN_[A-Z_]+[A-Z]", PAGE))
    assert named <= known
    assert {env.GPUS_PER_RANK, env.DEVICE_LINKS, env.DEVICE_ARENA} <= named


def test_the_ways_to_join_gpus_are_all_named():
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{env.DEVICE_LINKS}`"))
    assert all(f"`{links}`" in row for links in DeviceLinks)


def test_options_of_the_launcher_exist():
    for command in re.findall(r"^    blinkrun (-np .*)$", PAGE, re.MULTILINE):
        assert set(re.findall(r"--[a-z-]+", command)) <= set(OPTION_NAMES)
    assert "--gpus-per-rank" in OPTION_NAMES


def test_it_says_that_no_gpu_was_there():
    assert "No GPU was at hand" in PAGE
