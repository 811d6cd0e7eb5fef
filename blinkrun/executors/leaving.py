"""Groups that this rank has left before others; what they hold of MPI is given back when all have.

Freeing a communicator is collective in name only. Open MPI gives its number to the next one at
once, and what a slower rank still sends to the old one, as that it leaves too, arrives in the new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blinkrun.comm.base import ControlPlane
    from blinkrun.executors.base import Executor


class Leaving:
    """Groups that this rank has left, as long as not all of their ranks have."""

    def __init__(self) -> None:
        self._groups: list[tuple[Executor, ControlPlane | None]] = []

    def add(self, executor: Executor, control: ControlPlane, *, num_hosts: int) -> None:
        """Give back what the group has of MPI, if all have left it, or else by a later `sweep`.

        On one host nothing of it can be under way.
        """
        if num_hosts == 1:
            control.finalize()
            return
        self._groups.append((executor, control))
        self.sweep()

    def add_world(self, executor: Executor) -> None:
        """End what a world before the present one needs of MPI when all have left it.

        Its control plane serves the next one as well.
        """
        self._groups.append((executor, None))
        self.sweep()

    def sweep(self) -> None:
        """Give back what groups have that all have left by now; does not wait."""
        groups, self._groups = self._groups, []
        for executor, control in groups:
            if executor.group.all_left():
                executor.let_go()
                if control is not None:
                    control.finalize()
            else:
                self._groups.append((executor, control))

    def let_go(self) -> None:
        """Have nothing of them under way; their communicators end with MPI."""
        groups, self._groups = self._groups, []
        for executor, _ in groups:
            executor.let_go()
