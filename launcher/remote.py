"""How programs are started on other hosts: the launch agent, which is ssh unless said otherwise.

An agent is called as ssh is: ``AGENT HOST 'command for a shell'``. Each MPI has its own way to be
told of one, adds options for ssh or for its sisters, and says little when one fails. So the MPI
gets a script that the launcher writes for the job: it calls the agent without these options, with
no input and no way to ask for a password, and keeps what a failed one has said.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blinkrun.errors import LaunchError, UsageError
from blinkrun.launcher import slurm_agent

SSH = "ssh"
# A host's key that is new, or a password that is wanted, is a failure at once and not a question.
# ssh takes the first value that it is given, so these come behind the user's.
SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-x")
# What users of an MPI (or Kubernetes' MPI Operator) have set for it, in this order.
AGENT_VARIABLES = (
    "PRTE_MCA_plm_ssh_agent",
    "OMPI_MCA_plm_rsh_agent",
    "OMPI_MCA_orte_rsh_agent",
    "HYDRA_LAUNCHER_EXEC",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC",
)
ARGUMENT_VARIABLES = (
    "PRTE_MCA_plm_ssh_args",
    "OMPI_MCA_plm_rsh_args",
    "HYDRA_LAUNCH_EXTRA_ARGS",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
)
AGENT_JOB = "BLINKRUN_AGENT_OF"  # set in the agents of a job: its name
_SCRIPT = """\
#!/bin/sh
# Written by blinkrun for one job: starts the MPI's helper on another host.
while :; do case $1 in -*) shift ;; *) break ;; esac; done
export SSH_ASKPASS_REQUIRE=never
said={folder}/said.$1
{agent} "$@" </dev/null 2>"$said"
code=$?
cat "$said" >&2
[ $code = 0 ] || echo $code >{folder}/failed.$1
exit $code
"""

# What ssh says, and what to do then.
_REMEDIES = (
    (("resolve hostname", "name or service"), "check the name, or give the host's address"),
    (("host key verif",), "connect once by hand (ssh {host}) and accept the host's key"),
    (
        ("permission denied", "password"),
        "ssh must get in without a password: set up a key (ssh-copy-id), or an agent",
    ),
    (("timed out", "no route", "unreachable"), "is the host up, and is there a way to it?"),
    (
        ("connection refused",),
        "is sshd running there, on this port (--launch-agent 'ssh -p PORT')?",
    ),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A call of the agent that failed: for which host, how, and what it said."""

    host: str
    code: int
    said: tuple[str, ...]

    def text(self, agent: str) -> str:
        """Return it as a line that says what to do."""
        words = [line for line in self.said if line.strip("-=* ")]
        said = f": {' '.join(words)[-300:]}" if words else ""
        return f"host {self.host}: {agent} failed with exit code {self.code}{said}{self._remedy()}"

    def _remedy(self) -> str:
        said = " ".join(self.said).lower()
        for signs, remedy in _REMEDIES:
            if any(sign in said for sign in signs):
                return f"; {remedy.format(host=self.host)}"
        if self.code in (126, 127):
            return "; it is the program that is missing: here, or blinkrun's environment there"
        return "; try it by hand, or give another one with --launch-agent"


def agent_words(wanted: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words before ``HOST 'command'`` that start a command on another host.

    Parameters
    ----------
    wanted : str or None
        What ``--launch-agent`` says; None: what the MPI's own variables say, or the tool of the
        batch system around this process, or ssh.
    environ : mapping
        The launcher's environment.

    Raises
    ------
    UsageError
        If the program is not there.

    Examples
    --------
    >>> agent_words("ssh -p 2222", {"PATH": "/usr/bin"})[:3]
    ('ssh', '-p', '2222')
    """
    path = environ.get("PATH")
    if wanted is None:
        of_mpi = next((environ[name] for name in AGENT_VARIABLES if environ.get(name)), None)
        if of_mpi is None and environ.get("SLURM_JOB_ID") and shutil.which("srun", path=path):
            return (sys.executable, "-S", "-E", str(Path(slurm_agent.__file__)))
        if of_mpi is None and environ.get("LSB_JOBID") and shutil.which("blaunch", path=path):
            return ("blaunch",)
        wanted = SSH if of_mpi is None else of_mpi
    try:
        words = shlex.split(wanted)
    except ValueError as err:
        raise UsageError(f"--launch-agent '{wanted}': {err}") from None
    if not words:
        raise UsageError("--launch-agent is empty; example: --launch-agent 'ssh -p 2222'")
    program = os.path.expanduser(words[0])
    if shutil.which(program, path=path) is None:
        raise UsageError(
            f"--launch-agent: {program} is not there or not executable; it starts programs on"
            " other hosts, as ssh does"
        )
    if os.sep in program:
        program = os.path.abspath(program)
    if os.path.basename(program) != SSH:
        return (program, *words[1:])
    more = [word for name in ARGUMENT_VARIABLES for word in environ.get(name, "").split()]
    return (program, *words[1:], *more, *SSH_OPTIONS)


class AgentScript:
    """The agent of one job, as its MPI calls it: `path` is a program for ``HOST command``."""

    def __init__(self, words: Sequence[str], folder: str) -> None:
        self._name = os.path.basename(words[0])
        self._folder = Path(folder)
        self.path = str(self._folder / "agent")
        agent = shlex.join(words)
        text = _SCRIPT.format(folder=shlex.quote(folder), agent=agent)
        Path(self.path).write_text(text, encoding="utf-8")
        os.chmod(self.path, 0o700)

    def failures(self) -> list[str]:
        """Return a line for each call of the agent that has failed so far, with what to do."""
        found = []
        for path in sorted(self._folder.glob("failed.*")):
            host = path.name.partition(".")[2]
            code = path.read_text(encoding="ascii").strip()
            said = (self._folder / f"said.{host}").read_text(encoding="utf-8", errors="replace")
            failure = Failure(host, int(code or 1), tuple(said.splitlines()[-20:]))
            found.append(failure.text(self._name))
        return found


@contextmanager
def agent_script(words: Sequence[str]) -> Iterator[AgentScript]:
    """Keep the script for a job's MPI for as long as the context lasts.

    Raises
    ------
    LaunchError
        If it cannot be written.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="blinkrun-", ignore_cleanup_errors=True)
        script = AgentScript(words, folder.name)
    except OSError as err:
        raise LaunchError(f"the launch agent's script cannot be written: {err}") from err
    with folder:
        yield script
