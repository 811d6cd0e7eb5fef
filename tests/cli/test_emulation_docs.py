"""docs/emulation.md shows the table and the options that there are."""

import re

from support.emulated import job_for, rows_of
from support.places import ROOT

from blinkrun.bench.emulate_options import make_parser
from blinkrun.bench.emulate_table import header_lines

PAGE = (ROOT / "docs/emulation.md").read_text()


def test_the_table_on_the_page_has_the_columns_of_the_command():
    job = job_for("dgx-1v --gpus 1,4,5,7 --against ring --sizes 1M")
    for line in header_lines(job):
        assert line.rstrip() in PAGE
    shown = [line for line in PAGE.splitlines() if re.match(r"^ +\d+ +\d+ +-?\d", line)]
    rows = rows_of(shown)
    assert len(rows) >= 2
    for ours, ring in rows:
        assert 0.9 < float(ours[7]) < 1.1  # emulated over simulated
        assert 0.9 < float(ring[3]) < 1.1
        assert (ours[8], ring[4]) == ("0", "0")


def test_every_option_on_the_page_exists():
    named = set(re.findall(r"(?<![\w-])--[a-z]+", PAGE))
    assert named - set(make_parser().options) == set()
