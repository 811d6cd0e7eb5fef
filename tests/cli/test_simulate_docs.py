"""docs/simulator.md shows what the command prints and what things cost."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from blinkrun.launcher.cli import main
from blinkrun.simulator.cost import OURS, RINGS, SHARED_MEMORY, Cost

PAGE = Path(__file__).parent.parent.parent / "docs" / "simulator.md"
BLOCK = re.compile(r"```text\n\$ blinkrun (simulate [^\n]*)\n\n(.*?)```", re.DOTALL)


def check_or_write(text: str) -> None:
    """Assert that the page is `text`; with UPDATE_GOLDEN=1 write it."""
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, f"{PAGE} is not up to date; run with UPDATE_GOLDEN=1"


def test_outputs_are_those_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))

    def printed(match: re.Match[str]) -> str:
        assert main(match[1].split()) == 0
        return f"```text\n$ blinkrun {match[1]}\n\n{capsys.readouterr().out}```"

    text, count = BLOCK.subn(printed, PAGE.read_text())
    assert count >= 2
    check_or_write(text)


FIGURES: dict[str, Callable[[Cost], object]] = {
    "`launch_ns`": lambda cost: f"{cost.launch_ns:,}",
    "`step_ns`": lambda cost: f"{cost.step_ns:,}",
    "`efficiency`": lambda cost: cost.efficiency,
    "`memory_mb_per_s`": lambda cost: f"{cost.memory_mb_per_s:,}" if cost.memory_mb_per_s else "-",
    "`peer_switch_ns`": lambda cost: f"{cost.peer_switch_ns:,}",
    "`message_ns`": lambda cost: f"{cost.message_ns:,}",
}


def test_figures_are_those_that_are_used() -> None:
    rows = ["| | trees | rings | CPU ranks |", "|---|--:|--:|--:|"]
    for name, figure in FIGURES.items():
        cells = [name, *(str(figure(cost)) for cost in (OURS, RINGS, SHARED_MEMORY))]
        rows.append(f"| {' | '.join(cells)} |")
    page = PAGE.read_text()
    start, end = "<!-- figures -->\n\n", "\n\n<!-- end of figures -->"
    before, found, rest = page.partition(start)
    _, ended, after = rest.partition(end)
    assert found
    assert ended
    check_or_write("".join([before, start, "\n".join(rows), end, after]))
