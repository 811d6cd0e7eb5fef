"""blinkrun.torch where there is no torch: one line with the remedy."""

import subprocess
import sys

CODE = "import sys; sys.modules['torch'] = None; import blinkrun.torch"


def test_what_is_missing_is_told_with_the_remedy():
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: blinkrun.torch needs torch, which is not installed; pip install"
        " 'blinkrun[torch]'"
    )
    assert "During handling" not in done.stderr
