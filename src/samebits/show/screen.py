"""`samebits watch` on a terminal: where the run is, its loss, where its time goes, its ranks, and what happened last."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from samebits.launcher.watch.table import table_of, total_of
from samebits.launcher.watch.view import View
from samebits.machine.visible import visible
from samebits.protocol.events import Event, Kind, finite, of_kind
from samebits.show.run_data import PARTS, RunData
from samebits.show.story import event_text, time_text

COLOURS = {"data": "yellow", "compute": "blue", "exchange": "red", "optimizer": "green", "other": "bright_black"}
STYLES = {
    **dict.fromkeys((Kind.KILL, Kind.FAILURE, Kind.DAMAGE, Kind.STALL), "bold red"),
    **dict.fromkeys((Kind.RESTART, Kind.NODES, Kind.FINDING), "yellow"),
    **dict.fromkeys((Kind.RESUME, Kind.CHECKPOINT, Kind.END), "green"),
}
CURVE_ROWS, LEAST_ROWS = 6, 20
"""How high the curve is, and on how high a terminal there is one."""
NUM_EVENTS = 4
MOST_VALUES = 2000
AXIS = 11
"""Columns left of the curve."""
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a braille character: rows from the top, two columns."""


def screen_of(data: RunData, view: View, height: int, width: int) -> Group:
    """The whole screen.

    Args:
        data: what the run has left so far.
        view: its ranks.
        height: the rows that there are.
        width: the columns.
    """
    rows: list[RenderableType] = [_head(data)]
    curve = _loss(data)
    if len(curve) > 1 and height >= LEAST_ROWS:
        rows += [Text(line, style="cyan") for line in braille(curve, width - AXIS, CURVE_ROWS)]
    paces = of_kind(data.events, Kind.PACE)
    if paces and isinstance(shares := paces[-1].fields.get("shares"), dict):
        rows.append(_split(shares, paces[-1].number("step_ms"), width))
    told = [event for event in data.events if event.kind not in {Kind.PACE, Kind.EVALUATION}][-NUM_EVENTS:]
    left = height - len(rows) - len(told) - 4
    rows += [
        Text(total_of(view)),
        table_of(view, max(left, 1), width),
        *(_event(one, data.began_s, width) for one in told),
    ]
    return Group(*rows)


def _head(data: RunData) -> Text:
    paces = of_kind(data.events, Kind.PACE)
    text = Text()
    text.append(data.script.rpartition("/")[2], style="bold")
    if paces:
        last = paces[-1]
        epoch, epochs = last.number("epoch"), last.number("num_epochs")
        per_epoch, in_epoch = last.number("steps_per_epoch"), last.number("step_in_epoch")
        if epochs > 0:
            text.append(f"  epoch {epoch:.0f}/{epochs:.0f}")
        text.append(f"  step {last.step}")
        left = (epochs - epoch) * per_epoch + per_epoch - in_epoch
        if math.isfinite(left) and epochs > 0 and left > 0:
            text.append(f"  {time_text(left * last.number('step_ms') / 1e3)} left")
        text.append(f"  {last.number('samples_per_s'):,.0f} samples/s")
    loss = _loss(data)
    if loss:
        text.append(f"  loss {loss[-1]:.4g}", style="cyan")
    return text


def _loss(data: RunData) -> list[float]:
    """Its finite values; of a long curve as many, evenly spread, as the widest terminal shows, the last one among them."""
    curve = data.curves.loss
    values = curve.values if curve is not None else [one.number("loss") for one in of_kind(data.events, Kind.PACE)]
    if (size := len(values)) > MOST_VALUES:
        values = [values[number * size // MOST_VALUES - 1] for number in range(1, MOST_VALUES + 1)]
    return [value for value in values if math.isfinite(value)]


def _split(shares: dict[str, object], step_ms: float, width: int) -> Text:
    known = {part: finite(shares.get(part)) for part in PARTS if 0.005 <= finite(shares.get(part)) <= 1}
    words = {part: f"{part} {share:.0%} " for part, share in known.items()}
    end = f"{step_ms:.3g} ms a step"
    text, columns = Text(), width - len("".join(words.values())) - 2 * len(words) - len(end)
    for part, word in words.items():
        text.append(word, style="dim")
        text.append("█" * max(int(known[part] * columns), 1) + " ", style=COLOURS[part])
    text.append(end, style="dim")
    return text


def _event(event: Event, began_s: float, width: int) -> Text:
    text = Text(f"{event.time_s - began_s:8.1f} s ", style="dim")
    text.append(f"{event.kind:10} ", style=STYLES.get(event.kind, "bold"))
    text.append(visible(event_text(event)), style="")
    text.truncate(width, overflow="ellipsis")
    return text


def braille(values: Sequence[float], width: int, height: int) -> list[str]:
    """A curve in braille characters, with its greatest and least value at the left; logarithmic where that shows more.

    Args:
        values: finite numbers, at least one.
        width: the columns of the curve.
        height: its rows.
    """
    across, down = 2 * max(width, 1), 4 * height
    taken = [values[number * len(values) // across] for number in range(min(across, len(values)))]
    # Each column shows the last value of its part, so that a new one is seen at once.
    if len(values) > across:
        taken = [values[(number + 1) * len(values) // across - 1] for number in range(across)]
    scale = math.log10 if min(taken) > 0 and max(taken) / min(taken) > 20 else float
    shown = [scale(value) for value in taken]
    low, high = min(shown), max(shown)
    cells = [[0] * max(width, 1) for _ in range(height)]
    for number, value in enumerate(shown):
        column = number * across // max(len(shown), 1)
        row = round((high - value) / (high - low) * (down - 1)) if high > low else down // 2
        cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    labels = {0: f"{max(taken):.3g}", height - 1: f"{min(taken):.3g}"}
    return [
        f"{labels.get(row, ''):>{AXIS - 1}} " + "".join(chr(0x2800 + cell) for cell in line)
        for row, line in enumerate(cells)
    ]
