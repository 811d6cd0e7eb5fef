"""What the ranks of the launcher's tests do: ``job_program.py WHAT [RANK] [args]``.

The rank given (1 unless said) does what is asked; the others wait for longer than any test does.
No MPI: the launcher must do its work with any program.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK = int(os.environ["BLINKRUN_RANK"])
LONG_S = 300.0


def up() -> None:
    """Show that this rank runs."""
    Path(f"up.{RANK}").touch()


def wait_for_all(size: int) -> None:
    while not all(Path(f"up.{rank}").exists() for rank in range(size)):
        time.sleep(0.01)


def fail(how: str) -> None:
    if how == "raise":
        raise ValueError("boom")
    if how == "exit3":
        sys.exit(3)
    if how == "exit_text":
        sys.exit("cannot go on")
    if how == "os_exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError(how)


def blame(named: int) -> None:
    """End as a rank does that waited for one that has left."""
    from blinkrun.errors import PeerLeftError

    while not Path(f"left.{named}").exists():
        time.sleep(0.01)
    raise PeerLeftError(f"rank {named} has left while rank {RANK} waits for it", named)


def torn(num_lines: int) -> None:
    for number in range(num_lines):
        for piece in (b"rank ", b"%d" % RANK, b" line ", b"%d" % number, b" end\n"):
            os.write(1, piece)
    os.write(1, b"last of %d" % RANK)


def flood(num_mib: int) -> None:
    block = (b"x" * 127 + b"\n") * 1024
    for _ in range(num_mib * 8):
        os.write(1, block)


def grandchildren() -> None:
    """Start processes that leave the group, the session, and the parent."""
    subprocess.Popen(["sleep", str(LONG_S)], start_new_session=True)
    subprocess.Popen(["sh", "-c", f"sleep {LONG_S} & sleep {LONG_S}"])


def tidy_up() -> None:
    """On SIGTERM, let the child tidy up as well, and end with it."""
    code = f"trap 'touch tidy.child.{RANK}; exit' TERM; touch child.{RANK}; sleep {LONG_S} & wait"
    child = subprocess.Popen(["sh", "-c", code])
    while not Path(f"child.{RANK}").exists():
        time.sleep(0.01)

    def end(number: int, frame: object) -> None:
        Path(f"tidy.{RANK}").touch()
        child.wait()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)


def speak_slowly(*error: object) -> None:
    time.sleep(0.4)
    print("slow words", file=sys.stderr)


def main() -> None:
    what = sys.argv[1]
    size = int(os.environ["BLINKRUN_SIZE"])
    if what == "fail":
        print(f"rank {RANK} works", flush=True)
        up()
        wait_for_all(size)
        if int(sys.argv[3]) == RANK:
            fail(sys.argv[2])
    elif what == "early":
        up()
        wait_for_all(size)
        if RANK == 1:
            print("rank 1 thinks it is done", flush=True)
            Path("left.1").touch()
            sys.exit(0)
        blame(1)
    elif what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        grandchildren()
        up()
    elif what == "tidy":
        tidy_up()
        up()
    elif what == "slow_words":
        sys.excepthook = speak_slowly
        raise ValueError("boom")
    elif what == "wait":
        grandchildren()
        up()
    elif what == "background":
        grandchildren()
        return None
    elif what == "torn":
        return torn(int(sys.argv[2]))
    elif what == "flood":
        return flood(int(sys.argv[2]))
    time.sleep(LONG_S)
    return None


main()
