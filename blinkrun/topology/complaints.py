"""What a reader does about broken input: refuse it, or leave it out and say so."""

from __future__ import annotations

from dataclasses import dataclass, field

from blinkrun.errors import ReportError


@dataclass(slots=True)
class Complaints:
    """Collects what is wrong with a text.

    Attributes
    ----------
    source : str
        The file's name, for messages.
    partial : bool
        Whether what is wrong is left out and noted, instead of refused.
    notes : list of str
        What has been left out so far, one line each.
    """

    source: str
    partial: bool
    notes: list[str] = field(default_factory=list)

    def add(self, line: int, problem: str) -> None:
        """Refuse what stands on a line, or note that it is left out.

        Raises
        ------
        ReportError
            Unless the read is partial.
        """
        if not self.partial:
            raise ReportError(self.source, line, problem, partial=True)
        self.notes.append(f"line {line}: {problem}; left out" if line else f"{problem}; left out")
