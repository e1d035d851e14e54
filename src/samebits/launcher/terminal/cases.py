"""The findings of a run: each is kept in its folder, and one line at the end names them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from samebits.launcher.diagnosis.findings import FULL_DISK, Finding, is_full
from samebits.launcher.terminal.report import Line
from samebits.launcher.terminal.terminal import Console
from samebits.protocol.case import Case, cases_in, names_of


@dataclass(frozen=True)
class Cases:
    """Those of one run.

    Args:
        path: the file where launcher and ranks keep them.
    """

    path: Path

    def add(self, finding: Finding, said: str, ranks: Iterable[int] = ()) -> None:
        """Keep a case of `finding`.

        Args:
            finding: what it is.
            said: what the terminal says.
            ranks: who is to blame, or concerned.
        """
        Case(finding.name, said, tuple(sorted(ranks))).add_to(self.path)

    def last_line(self, folder: Path) -> Line | None:
        """`found     straggler, nan-loss: "samebits diagnose FOLDER" says why, and what to do`; None if nothing was.

        Args:
            folder: the run's, as it was named before.
        """
        names = names_of(cases_in(self.path))
        said = f"{', '.join(names)}: `samebits diagnose {folder}` says why, and what to do"
        return Line("found", said) if names else None


@dataclass
class Losses:
    """What a run has lost of its output or records, each reported once."""

    console: Console
    cases: Cases
    sentences: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        """Report what is lost, once; nothing if it is empty."""
        # The launcher reads the same journals several times a second; each loss is one line.
        if sentence and sentence not in self.sentences:
            self.sentences.append(sentence)
            self.console.line(Line("warning", sentence))
            if is_full(sentence):
                self.cases.add(FULL_DISK, sentence)
