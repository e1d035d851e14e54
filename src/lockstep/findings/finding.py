"""A kind of trouble that has a name. A case of it in a run: `lockstep.handover.case`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A kind of trouble. Texts are Markdown in whole sentences."""

    name: str
    """`stopped-process`: in the run's files, and the name of its page."""
    title: str
    """A short sentence without a full stop."""
    seen: str
    """What was seen that says so."""
    example: str
    """What the terminal says."""
    why: str
    """How it comes to that."""
    what_to_do: tuple[str, ...]
    """The first one is said in the terminal as well."""

    @property
    def first_aid(self) -> str:
        """The first thing to do, as a terminal says it: without Markdown."""
        return self.what_to_do[0].replace("`", "")

    @property
    def aid_afterwards(self) -> str:
        """The first thing to do that still helps when the ranks have ended."""
        return next(step for step in self.what_to_do if "PID" not in step).replace("`", "")
