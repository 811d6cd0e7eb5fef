"""``python -m blinkrun`` is the command ``blinkrun``."""

from __future__ import annotations

import sys

from blinkrun.launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
