"""The findings of a run: each is kept in its folder, and one line at the end names them."""

from __future__ import annotations

import shlex
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

    def see_also(self, folder: Path) -> str:
        """`samebits diagnose FOLDER: straggler, nan-loss`; empty if nothing was found.

        Args:
            folder: the run's, as it was named before.
        """
        names = names_of(cases_in(self.path))
        return f"samebits diagnose {shlex.quote(str(folder))}: {', '.join(names)}" if names else ""


@dataclass
class Losses:
    """What a run has lost of its output or records, each reported once."""

    console: Console
    cases: Cases
    sentences: list[str] = field(default_factory=list)
    _is_folder_gone: bool = False

    def add(self, sentence: str) -> None:
        """Report what is lost, once; nothing if it is empty."""
        if not sentence or self._is_folder_gone:
            return
        if not self.cases.path.parent.is_dir():
            self._is_folder_gone = True
            said = f"{self.cases.path.parent} was removed: the run goes on, and its logs and events are lost"
            self.console.line(Line("warning", said))
            return
        # The launcher reads the same journals several times a second; each loss is one line.
        if sentence not in self.sentences:
            self.sentences.append(sentence)
            self.console.line(Line("warning", sentence))
            if is_full(sentence):
                self.cases.add(FULL_DISK, sentence)
