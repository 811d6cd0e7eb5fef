"""Where the tests lie; imports nothing, since every rank of a test job reads it."""

from pathlib import Path

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
CASE_FOLDERS = ("ranks/cases", "frameworks/cases", "launch/cases")
