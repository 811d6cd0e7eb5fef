"""What hosts are asked before a job, and what they answer: values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of every host.

    Attributes
    ----------
    python : str
        The Python that is to run blinkrun there, by its full path.
    paths : tuple of str
        Folders of PYTHONPATH.
    files : tuple of str
        Files that every host must have, with the same content.
    cwd : str or None
        The folder that the job runs in.
    mpiexec : str or None
        The MPI's mpiexec here; the others must have that MPI at the same place.
    interfaces : tuple of str
        Network interfaces to be used; empty: any.
    deep : bool
        Whether mpi4py and the core are loaded as well, which takes a second, and GPUs tried
        where there is a driver for them.
    gpus : bool
        Whether GPUs are tried wherever they seem to be missing too.
    """

    python: str
    paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    cwd: str | None = None
    mpiexec: str | None = None
    interfaces: tuple[str, ...] = ()
    deep: bool = False
    gpus: bool = False

    def request(self) -> dict[str, Any]:
        """Return this as `probe.main` and `probe.facts` take it, without what differs by host."""
        return {
            "paths": list(self.paths),
            "files": list(self.files),
            "cwd": self.cwd,
            "mpiexec": self.mpiexec,
            "deep": self.deep,
            "gpus": self.gpus,
        }


@dataclass(slots=True)
class Answer:
    """What came of asking one host.

    Attributes
    ----------
    host : str
        As it was given.
    problem : str
        Why it could not be asked, empty if it could: what the agent failed to start with, or
        ``prompt`` (it asked for something), or ``late``.
    shell : bool
        Whether a shell on the host has run.
    said : str
        What agent and host wrote on stderr.
    code : int or None
        The agent's exit code.
    facts : dict or None
        See `probe.facts`.
    address : str
        Where the host is reached, as seen from here; empty if it did not connect back.
    clock_s : float or None
        How far its clock is ahead of this one's.
    unreached : tuple of str
        The other hosts that it could not connect to.
    is_reached : bool
        Whether this host could connect to it.
    """

    host: str
    problem: str = ""
    shell: bool = False
    said: str = ""
    code: int | None = None
    facts: dict[str, Any] | None = None
    address: str = ""
    clock_s: float | None = None
    unreached: tuple[str, ...] = ()
    is_reached: bool = True


def addresses_of(found: Sequence[Mapping[str, Any]], wanted: Sequence[str]) -> list[str]:
    """Return the addresses of interfaces that are up, of those that are wanted (empty: all)."""
    return [
        address.partition("/")[0]
        for each in found
        if each["up"] and (not wanted or each["name"] in wanted)
        for address in each["addresses"]
    ]
