"""The page on migrating from Horovod is complete, and what it calls the same is there."""

from __future__ import annotations

import re

import pytest
from support.places import ROOT, TESTS

from blinkrun.launcher.horovod import IGNORED, RENAMED, SETTINGS
from blinkrun.launcher.options import OF_SEVERAL_HOSTS, OPTION_NAMES

PAGE = (ROOT / "docs" / "migrate-from-horovod.md").read_text()
NAMES = (TESTS / "data/horovod/torch_names.txt").read_text().split()
OPTIONS = (TESTS / "data/horovod/horovodrun_options.txt").read_text().split()
STATUSES = {"same", "better", "renamed", "absent"}


def table(title: str) -> dict[str, str]:
    """Return name to status, of the first table below the heading `title`."""
    found: dict[str, str] = {}
    section = PAGE.split(f"\n## {title}\n")[1].split("\n#")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and "`" in cells[0]:
            for name in re.findall(r"`([^`]+)`", cells[0]):
                assert name not in found, f"{name} is there twice"
                assert cells[1] in STATUSES, line
                found[name] = cells[1]
    return found


def test_every_name_of_horovod_is_in_the_table() -> None:
    assert sorted(table("Names of `horovod.torch`")) == sorted(NAMES)


def test_what_is_called_the_same_exists() -> None:
    torch = pytest.importorskip("blinkrun.torch", reason="needs torch", exc_type=ImportError)
    rows = table("Names of `horovod.torch`")
    here = [name for name, status in rows.items() if status in ("same", "better")]
    assert len(here) > 60
    assert not [name for name in here if not hasattr(torch, name)]
    assert not [name for name in here if name not in torch.__all__]
    absent = [name for name, status in rows.items() if status == "absent"]
    assert not [name for name in absent if hasattr(torch, name)]


def test_every_option_of_horovodrun_is_in_the_table_and_answered_as_it_says() -> None:
    rows = table("Options of `horovodrun`")
    assert sorted(rows) == sorted(OPTIONS)
    for name, status in rows.items():
        if status in ("same", "better") and name not in RENAMED:
            assert name in OPTION_NAMES, name
        else:
            assert name in {*RENAMED, *OF_SEVERAL_HOSTS}, name
    assert set(RENAMED) <= set(rows)


def test_every_variable_that_is_known_is_in_the_table() -> None:
    rows = table("Environment variables")
    assert sorted(rows) == sorted({*SETTINGS, *IGNORED})
    for name, status in rows.items():
        assert (status == "renamed") == (name in SETTINGS), name
