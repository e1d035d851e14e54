"""The table of a GPU day: a row as each task ends, so columns are as wide as the names that are to come."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TextIO

from benchmarks.gpu_day.outcome import Outcome, State
from samebits.machine.visible import visible

LEAST_ROOM = 20
COLOURS = {
    State.OK: "32",
    State.MISSED: "33",
    State.FAILED: "31;1",
    State.CUT_OFF: "31;1",
    State.NOT_HERE: "2",
    State.NO_TIME: "2",
}


def has_colours(stream: TextIO, variables: Mapping[str, str]) -> bool:
    """Whether colours are wanted: on a terminal, and NO_COLOR is not set."""
    return stream.isatty() and not variables.get("NO_COLOR") and variables.get("TERM") != "dumb"


def columns_of(stream: TextIO) -> int:
    """How wide a terminal is; 0 for a file or a pipe."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80 if stream.isatty() else 0
    except (OSError, ValueError):
        return 0


class Table:
    """Lines for rows whose names are known before.

    Args:
        names: (block, task) of all rows.
        colours: whether to colour what came of them.
        columns: of the terminal, beyond which nothing is said: the record has it all. 0: no terminal.
    """

    def __init__(self, names: Sequence[tuple[str, str]], *, colours: bool, columns: int = 0) -> None:
        self._widths = [
            max([len(title), *(len(name[place]) for name in names)]) for place, title in enumerate(("block", "task"))
        ]
        self._state = max(map(len, State))
        self._colours, self._columns = colours, columns
        self._last = ""

    def head(self) -> str:
        """The line above."""
        return self._line("block", "task", "", "seconds", "what it says")

    def row(self, outcome: Outcome) -> str:
        """A row; a block is named in its first."""
        block = "" if outcome.block == self._last else outcome.block
        self._last = outcome.block
        seconds = f"{outcome.seconds:.1f}" if outcome.seconds else ""
        return self._line(block, outcome.task, outcome.state, seconds, visible(outcome.says))

    def _line(self, block: str, task: str, state: str, seconds: str, says: str) -> str:
        shown = f"{state:{self._state}}"
        if self._colours and state:
            shown = f"\x1b[{COLOURS[State(state)]}m{shown}\x1b[0m"
        if self._columns:
            room = max(self._columns - sum(self._widths) - self._state - 7 - 4 * 2, LEAST_ROOM)
            says = says if len(says) <= room else f"{says[: room - 3]}..."
        return f"{block:{self._widths[0]}}  {task:{self._widths[1]}}  {shown}  {seconds:>7}  {says}".rstrip()


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    """`31 ok, 1 missed, 2 FAILED, 4 not here in 43 min`."""
    counts = Counter(outcome.state for outcome in outcomes)
    told = ", ".join(f"{counts[state]} {state}" for state in State if counts[state]) or "nothing was tried"
    return f"{told} in {seconds / 60:.0f} min" if seconds >= 100 else f"{told} in {seconds:.0f} s"


class Progress:
    """One line on a terminal about what is under way; nothing elsewhere.

    Args:
        stream: standard error.
        number: of tasks.
    """

    def __init__(self, stream: TextIO, number: int) -> None:
        self._stream, self._number, self.done = stream, number, 0
        self._shown = ""

    def tell(self, block: str, task: str, seconds: float, limit_s: float) -> None:
        """Show it."""
        self._show(f"{self.done + 1}/{self._number} {block}: {task}, {seconds:.0f} s of at most {limit_s:.0f}")

    def tell_several(self, names: Sequence[str], seconds: float, limit_s: float) -> None:
        """Show what runs beside each other."""
        self._show(f"{self.done}/{self._number}, {seconds:.0f} s of {limit_s:.0f}: {'; '.join(names)}")

    def clear(self) -> None:
        """Take the line away."""
        self._show("")

    def _show(self, text: str) -> None:
        if text != self._shown and (columns := columns_of(self._stream)):
            self._shown = text
            print(f"\r\033[K{text[: columns - 1]}", end="", file=self._stream, flush=True)
