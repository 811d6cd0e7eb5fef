"""The page on migrating from Horovod is complete, and what it calls the same is there."""

from __future__ import annotations

import re

import pytest
from support.places import ROOT, TESTS

from blinkrun.launcher.horovod import IGNORED, RENAMED, SETTINGS
from blinkrun.launcher.options import OF_MPIEXEC, OPTION_NAMES

PAGE = (ROOT / "docs" / "migrate-from-horovod.md").read_text()
DATA = TESTS / "data/horovod"
TORCH = "Names of `horovod.torch`"
TENSORFLOW = "Names of `horovod.tensorflow`"
KERAS = "Names of `horovod.tensorflow.keras` and `horovod.keras`"
FILES = {
    TORCH: ["torch"],
    TENSORFLOW: ["tensorflow"],
    KERAS: ["tensorflow_keras", "keras"],
}
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


@pytest.mark.parametrize("title", FILES)
def test_every_name_of_horovod_is_in_the_table(title: str) -> None:
    names = {
        name for file in FILES[title] for name in (DATA / f"{file}_names.txt").read_text().split()
    }
    assert sorted(table(title)) == sorted(names)


@pytest.mark.parametrize(
    ("title", "module", "elsewhere"),
    [
        (TORCH, "blinkrun.torch", set()),
        (TENSORFLOW, "blinkrun.tf", set()),
        (KERAS, "blinkrun.tf.keras", {"Adasum"}),
    ],
)
def test_what_is_called_the_same_exists(title: str, module: str, elsewhere: set[str]) -> None:
    ours = pytest.importorskip(module, reason=f"needs {module}", exc_type=ImportError)
    rows = table(title)
    here = [n for n, status in rows.items() if status in ("same", "better") and n not in elsewhere]
    assert len(here) > 35
    assert not [name for name in here if name not in ours.__all__]
    if module == "blinkrun.torch":  # the others look names up in a framework that takes seconds
        assert not [name for name in here if not hasattr(ours, name)]
    absent = [name for name, status in rows.items() if status == "absent"]
    assert not [name for name in absent if name in ours.__all__]


def test_every_option_of_horovodrun_is_in_the_table_and_answered_as_it_says() -> None:
    rows = table("Options of `horovodrun`")
    assert sorted(rows) == sorted(OPTIONS)
    for name, status in rows.items():
        if status in ("same", "better") and name not in RENAMED:
            assert name in OPTION_NAMES, name
        else:
            assert name in {*RENAMED, *OF_MPIEXEC}, name
    assert set(RENAMED) <= set(rows)


def test_every_variable_that_is_known_is_in_the_table() -> None:
    rows = table("Environment variables")
    assert sorted(rows) == sorted({*SETTINGS, *IGNORED})
    for name, status in rows.items():
        assert (status == "renamed") == (name in SETTINGS), name
