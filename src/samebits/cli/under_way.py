"""What `verify` and `bench` say on standard error while runs are under way, so that no long one passes in silence.

On a terminal one line with the seconds, from the third second on; elsewhere a plain line every half minute.

Runs in: a daemon thread of the command.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.measure import Measurement
from rich.segment import Segment

from samebits.launcher.terminal.terminal import cut
from samebits.machine.visible import visible, visible_lines

FIRST_S, EVERY_S = 2.0, 1.0
"""On a terminal: after how many seconds they are displayed, and how often from there on."""
PLAIN_S = 30.0
"""Elsewhere: between two lines."""
LEAST_COLUMNS = 20


class UnderWay:
    """Prints what runs now; with `is_quiet` only the lines given to `say`."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._updates = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._text, self._began = "", 0.0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def begin(self, text: str) -> None:
        """Something begins; it is under way until the next `begin` or `end`."""
        with self._changed:
            self._text, self._began = visible(text), time.monotonic()
            self._show("")
            if self._thread is None and not self._is_quiet:
                self._thread = threading.Thread(target=self._tick, daemon=True)
                self._thread.start()
            self._changed.notify()

    def end(self, line: str = "") -> None:
        """It has ended: `line` says how, if it is to be printed."""
        with self._changed:
            self._text = ""
            self._write("" if self._is_quiet else visible(line))
            self._changed.notify()

    def say(self, line: str) -> None:
        """Print a line now; what is under way continues."""
        with self._changed:
            self._write(visible(line))
            self._show("")

    def note(self, sentence: str) -> None:
        """Print what the user should know."""
        self.say(f"note: {sentence}")

    @property
    def present(self) -> str:
        """What is under way; empty when nothing is."""
        return self._text

    def _tick(self) -> None:
        with self._changed:
            while True:
                text, lasts_s = self._text, time.monotonic() - self._began
                self._changed.wait(wait_s(lasts_s, updates=self._updates) if text else None)
                if not text or text != self._text or (lasts_s := time.monotonic() - self._began) < FIRST_S:
                    continue
                self._show(f"{lasts_s:.0f} s" if self._updates else f"{lasts_s:.0f} s so far")

    def _show(self, seconds: str) -> None:
        """Show what is under way; where lines stay, only together with its seconds."""
        if self._text and self._updates and not self._is_quiet:
            most = max(_columns() - len(seconds) - 4, LEAST_COLUMNS)
            click.echo(f"\r\x1b[K{cut(self._text, most)} … {seconds}", err=True, nl=False)
        elif self._text and seconds:
            click.echo(f"{self._text} … {seconds}", err=True)

    def _write(self, line: str) -> None:
        if self._updates:
            click.echo("\r\x1b[K", err=True, nl=False)
        if line:
            click.echo(line, err=True)


class Progress:
    """A line for each run on standard error, and its seconds while it lasts.

    Args:
        under_way: what says them.
    """

    def __init__(self, under_way: UnderWay) -> None:
        self._under_way = under_way

    def watch(self, label: str, seconds: float | None) -> None:
        """Show that a run begins, or has ended after this many seconds."""
        if seconds is None:
            self._under_way.begin(label)
        else:
            self._under_way.end(f"{label} … {seconds:.1f} s")

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Say which signal has ended what runs inside, and exit with its code."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit) as ending:
            code = ending.code if isinstance(ending, SystemExit) else 128 + signal.SIGINT
            self.say_stopped(int(code or 1))
            sys.exit(code)

    def say_stopped(self, code: int) -> None:
        """Say that a signal, 128 less than `code`, has ended everything."""
        name = "Ctrl-C" if code == 128 + signal.SIGINT else signal.Signals(code - 128).name
        where = f' in the run "{self._under_way.present}"' if self._under_way.present else ""
        self._under_way.end()
        self._under_way.say(f"stopped by {name}{where}: nothing is proved; no process and no file of the runs is left")


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def wait_s(lasts_s: float, *, updates: bool) -> float:
    """How long to wait until the seconds are shown next, of something that lasts that long already."""
    if updates:
        return FIRST_S - lasts_s if lasts_s < FIRST_S else EVERY_S - lasts_s % EVERY_S
    return PLAIN_S - lasts_s % PLAIN_S


LEAST_COLUMNS_OF_TABLES = 40
"""In fewer a table would lose its texts; the terminal breaks the lines instead. COLUMNS=0 means none at all."""


def screen() -> Console:
    """A console for standard output. rich passes control characters through, so they are made visible first.

    A newline is where rich broke a line. Callers remove the newlines of a name from elsewhere first (`visible`).
    """
    console = Console(highlight=False)
    console.width = max(console.width, LEAST_COLUMNS_OF_TABLES)
    console.push_render_hook(_Visible())
    return console


class _Visible(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Shown(renderable) for renderable in renderables]


@dataclass(frozen=True)
class _Shown:
    """What `inner` shows, with its control characters visible; rich's own styles are not affected."""

    inner: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._segments(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.inner)

    def _segments(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self.inner, options):
            yield Segment(text if control else visible_lines(text), style, control)
