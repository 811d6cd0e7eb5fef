"""docs/hosts.md says what the code says: its messages and its options are there."""

from __future__ import annotations

import re

import pytest
from support.places import ROOT

from blinkrun.cli.doctor_options import make_parser
from blinkrun.launcher.options import OPTION_NAMES

PAGE = (ROOT / "docs/hosts.md").read_text(encoding="utf-8")
_SUBJECT = r"host b( \([^)]*\))? |-np 20 |rank 0 |MPI "


def messages() -> list[str]:
    """Return what the table of messages quotes, each without the words that vary."""
    table = PAGE.partition("| what is said |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    found = [re.sub(f"^({_SUBJECT})", "", text) for text in quoted if re.match(_SUBJECT, text)]
    return [" ".join(text.split()[:3]) if " " in text else text for text in found]


@pytest.fixture(scope="module")
def source() -> str:
    files = [*(ROOT / "launcher").glob("*.py"), *(ROOT / "blinkrun").rglob("*.py")]
    files += (ROOT / "blinkrun/csrc").glob("*.cpp")
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    text = re.sub(r'"\s*f?"', "", text)  # a text over several lines
    return re.sub(r"\{[^{}]*\}", "X", text)


def test_there_are_messages() -> None:
    assert len(messages()) > 12


@pytest.mark.parametrize("message", sorted(set(messages())))
def test_the_code_says_what_the_page_quotes(message: str, source: str) -> None:
    words = [re.escape(word) for word in message.split()]
    varying = [f"({word}|X)" if re.search(r"[\d/]", word) else word for word in words]
    assert re.search(" ".join(varying), source), f"nothing says '{message}'"


def test_every_option_on_the_page_exists() -> None:
    ours = {*OPTION_NAMES, *make_parser().options}
    named = set(re.findall(r"`(--[a-z-]+)", PAGE)) | set(re.findall(r"blinkrun (--[a-z-]+)", PAGE))
    assert named - {"--mpi=pmix"} <= ours
