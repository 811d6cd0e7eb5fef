"""A launch agent for jobs inside a Slurm allocation: ``slurm_agent.py HOST 'command'``, by srun.

Many clusters let nobody in by ssh. A file on the standard library, run by its path.
"""

from __future__ import annotations

import os
import sys


def command(host: str, words: list[str]) -> list[str]:
    """Return the srun command: one task on one host, beside whatever else runs there.

    >>> command("gpu1", ["echo", "hello"])[-4:]
    ['--nodelist=gpu1', '/bin/sh', '-c', 'echo hello']
    """
    return [
        "srun",
        "--nodes=1",
        "--ntasks=1",
        "--overlap",  # the step shares what the job has with the other steps
        "--cpu-bind=none",  # one task of all the ranks' threads: no core of its own
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--input=none",
        f"--nodelist={host}",
        "/bin/sh",
        "-c",
        " ".join(words),
    ]


def main(argv: list[str]) -> None:
    """Become srun."""
    while argv and argv[0].startswith("-"):
        argv = argv[1:]
    if len(argv) < 2:
        sys.stderr.write("usage: slurm_agent.py HOST COMMAND...\n")
        sys.exit(2)
    words = command(argv[0], argv[1:])
    environ = {
        # A request for more than this step needs, made for the whole job, would be refused.
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_NTASKS", "SLURM_TASKS_PER_NODE", "SLURM_CPU_BIND"))
    }
    os.execvpe(words[0], words, environ)


if __name__ == "__main__":
    main(sys.argv[1:])
