"""Where `verify`, `bench` and `doctor` show their tables: a rich console on which texts from elsewhere cannot act."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.measure import Measurement
from rich.segment import Segment

from lockstep.machine.visible import visible_lines

LEAST_COLUMNS = 40
"""In fewer a table would lose its texts; the terminal breaks the lines instead. COLUMNS=0 means none at all."""


def screen() -> Console:
    """A console for standard output. rich passes control characters through, so they are made visible first.

    A newline is where rich broke a line. Callers remove the newlines of a name from elsewhere first (`visible`).
    """
    console = Console(highlight=False)
    console.width = max(console.width, LEAST_COLUMNS)
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
