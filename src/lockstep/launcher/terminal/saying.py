"""How the launcher's lines look on a terminal: the label set apart, the rest as it is."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.launcher.terminal.report import LABEL_WIDTH, Line
from lockstep.launcher.terminal.terminal import BOLD, DIM, ERR, RED, Terminal

_STYLES = {"lockstep": BOLD, "done": BOLD, "warning": RED}


@dataclass(frozen=True)
class Saying:
    """Says lines on `terminal`; None says nothing, for runs that `verify` starts."""

    terminal: Terminal | None

    def line(self, line: Line) -> None:
        """Say one line with its label."""
        if self.terminal is not None:
            self.terminal.say(line.text, line.label.ljust(LABEL_WIDTH), _STYLES.get(line.label, DIM))

    def plain(self, text: str) -> None:
        """Say text without a label."""
        if self.terminal is not None:
            self.terminal.say(text)

    def block(self, text: str) -> None:
        """Say a failure block; its first word stands out."""
        if self.terminal is not None:
            self.terminal.block(text, RED)

    def lost(self) -> list[str]:
        """What could not be said because standard error could not be written; empty when it could."""
        reason = self.terminal.lost.get(ERR) if self.terminal is not None else None
        return [f"standard error cannot be written ({reason})"] if reason else []

    def settle(self) -> None:
        """End what the ranks left open on the terminal, once none writes any more."""
        if self.terminal is not None:
            self.terminal.settle()
