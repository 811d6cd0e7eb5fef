"""The parser of the benchmarks' options."""

from __future__ import annotations

import argparse
from typing import NoReturn

from blinkrun.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Raises instead of printing: every rank parses, one rank speaks."""

    def error(self, message: str) -> NoReturn:
        """Raise `message` as a UsageError."""
        raise UsageError(message)
