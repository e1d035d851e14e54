"""What a run could not write: each thing is said once, when it is noticed, and again at the end.

A full disk ends no training; but a run that lost something does not end with exit code 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep.launcher.diagnosis.findings import FULL_DISK, is_full
from lockstep.launcher.terminal.cases import Cases
from lockstep.launcher.terminal.report import Line
from lockstep.launcher.terminal.saying import Saying


@dataclass
class Losses:
    """The losses of one run."""

    saying: Saying
    cases: Cases
    sentences: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        """Say what is lost, unless that was said already or is empty."""
        if sentence and sentence not in self.sentences:
            self.sentences.append(sentence)
            self.saying.line(Line("warning", sentence))
            if is_full(sentence):
                self.cases.add(FULL_DISK, sentence)
