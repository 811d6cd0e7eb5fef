"""Reports of real machines (tests/data/topologies), and texts that look nearly like them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from support.places import TESTS

FOLDER = TESTS / "data" / "topologies"


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    outcome: str
    expected: dict[str, Any]


def case(name: str) -> Case:
    told = json.loads((FOLDER / name / "case.json").read_text())
    text = (FOLDER / name / told["input"]).read_bytes().decode()
    return Case(name, text, told["expected_outcome"], told["expected"])


def case_names() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob("*/case.json"))


def mutate(rng: random.Random, texts: list[str]) -> str:
    """Return one of the texts, damaged: cut, spliced with another, edited in a few places."""
    text = rng.choice(texts)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        text = rng.choice(_DAMAGES)(rng, text, texts)
    return text


def _cut(rng: random.Random, text: str, texts: list[str]) -> str:
    start, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return rng.choice((text[:end], text[start:], text[:start] + text[end:]))


def _splice(rng: random.Random, text: str, texts: list[str]) -> str:
    other = rng.choice(texts)
    at, start, end = rng.randrange(len(text) + 1), *sorted(rng.sample(range(len(other) + 1), 2))
    return rng.choice((text[:at] + other[start:], text[:at] + other[start:end] + text[at:]))


def _edit_characters(rng: random.Random, text: str, texts: list[str]) -> str:
    characters = list(text)
    for _ in range(rng.choice((1, 2, 20))):
        at = rng.randrange(len(characters) + 1)
        new = rng.choice(("", rng.choice(text or " "), rng.choice(_STRANGE)))
        characters[at : at + rng.randrange(3)] = [new]
    return "".join(characters)


def _edit_lines(rng: random.Random, text: str, texts: list[str]) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    edit = rng.randrange(5)
    if edit == 0:
        del lines[at]
    elif edit == 1:
        lines.insert(at, lines[other])
    elif edit == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif edit == 3:
        rng.shuffle(lines)
    else:
        lines[at] = " ".join(lines[at].split()) + "\n"
    return "".join(lines)


def _edit_words(rng: random.Random, text: str, texts: list[str]) -> str:
    words = text.split(" ")
    others = rng.choice(texts).split() or ["X"]
    for _ in range(rng.choice((1, 2, 10))):
        words[rng.randrange(len(words))] = rng.choice((*_WORDS, rng.choice(others)))
    return " ".join(words)


def _repeat(rng: random.Random, text: str, texts: list[str]) -> str:
    start, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return text[:end] + text[start:end] * rng.choice((1, 2, 5)) + text[end:]


_DAMAGES = (_cut, _splice, _edit_characters, _edit_lines, _edit_words, _repeat)
_STRANGE = "\x00\x1b\r\n\t<>&;\"'|#\\{}[]()=:,.-+*/%é\u2028\ud800\ufeff\U0001f600"
_WORDS = (
    "X", "SYS", "NV12", "NV0", "NV999999999999999999999", "GPU0", "GPU-1", "GPU99999999", "NIC0",
    "-1", "0", "1e9", "nan", "9" * 5000, "SELF", "XGMI", "N/A", "null", "true", "[", "{", "}",
    "<pci", "</pci>", "/>", "<!--", "]]>", "&amp;", "&x;", "<!DOCTYPE", "count=\"-1\"", "\x1b[4m",
    "GPU", "TABLE:", "WEIGHT", "Link", "GB/s", "<inactive>", "0000:00:00.0", "target=\"\"",
)  # fmt: skip
