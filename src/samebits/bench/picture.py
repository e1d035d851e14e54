"""The picture of a bench: a bar for each configuration with its spread, and below what every rank did in one step.

matplotlib is an extra ("plot"); it is imported when something is drawn, and by no rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

from samebits.bench.measures import Interval
from samebits.bench.results import DIFFERS, REFERENCE, SAME, Measured, Results
from samebits.errors import EnvironmentFailure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")
COLOURS = {
    "data": "#e0a030",
    "compute": "#3b75af",
    "forward": "#27507a",
    "backward": "#7fb3dc",
    "exchange": "#c44e52",
    "wait": "#e3e3e3",
    "update": "#5a9e5a",
    "script": "#b0b0b0",
}
EXACT, INEXACT = "#3b75af", "#b8a0c8"
MAX_TIMES = 3.0
"""Rows that are longer than this, relative to the middle one, are cut off."""
LABEL_BOX = {"facecolor": "#333333", "edgecolor": "none", "pad": 1.2}
LEAST_NUMBERED = 0.012
"""A micro-batch that takes less of the width than this gets no number."""


def draw(results: Results, path: Path) -> None:
    """Write the picture, in the format of the file's extension.

    Args:
        results: at least one configuration has numbers.
        path: .png, .svg or .pdf.

    Raises:
        EnvironmentFailure: when it cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and half a second that only a picture needs

    whole = list(results.whole())
    num_rows = sum(len(one.rounds[0].one_step) for one in whole)
    heights = (3.4, 0.5 + 0.27 * num_rows)
    figure = Figure(figsize=(max(6.4, 1.25 * len(whole) + 1.0), sum(heights) + 1.2), dpi=140, layout="constrained")
    bars, steps = figure.subplots(2, 1, height_ratios=heights)
    draw_bars(bars, results, whole)
    draw_steps(steps, whole)
    try:
        figure.savefig(path)
    except OSError as error:
        raise EnvironmentFailure(f"The picture {path} cannot be written: {error.strerror}.") from None


def draw_bars(axes: Axes, results: Results, whole: Sequence[Measured]) -> None:
    """Samples per second; the error bars reach to the quartiles of all steps."""
    speeds = [one.speed for one in whole]
    exact = [results.exactness(one) for one in whole]
    errors = ([one.median - one.low for one in speeds], [one.high - one.median for one in speeds])
    colours = [EXACT if word in (SAME, REFERENCE) else INEXACT for word in exact]
    places = range(len(whole))
    axes.bar(
        places, [one.median for one in speeds], yerr=errors, color=colours, width=0.62, capsize=4, ecolor="#333333"
    )
    top = max(one.high for one in speeds)
    axes.set_ylim(0, top * 1.22)
    for place, one, speed, word in zip(places, whole, speeds, exact, strict=True):
        times = results.speed_up(one)
        text = f"{times.median:.2f}x" if times is not None else ""
        weight = "bold" if word == DIFFERS else "normal"
        axes.text(
            place, speed.high + top * 0.02, f"{text}\n{word}", ha="center", va="bottom", fontsize=8, weight=weight
        )
    axes.set_xticks(places, [_label(one) for one in whole], fontsize=8)
    axes.set_ylabel("samples/s")
    axes.set_title(f"{Path(results.title).name}: {results.cores} cores, {results.device}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def draw_steps(axes: Axes, whole: Sequence[Measured]) -> None:
    """One step of median length of each configuration: a row for each rank, in milliseconds."""
    rows = [(one, rank, intervals) for one in whole for rank, intervals in enumerate(_typical(one))]
    ends = [max(each.end for each in intervals) * 1e3 for _, _, intervals in rows]
    limit = min(max(ends), median_low(ends) * MAX_TIMES)
    axes.set_xlim(0, limit * 1.01)
    used: dict[str, Any] = {}
    for row, (_, _, intervals) in enumerate(rows):
        for piece in intervals:
            _draw_piece(axes, row, piece, limit, used)
        if ends[row] > limit:
            text = f"… {ends[row]:.0f} ms "
            axes.text(limit, row, text, ha="right", va="center", fontsize=7, color="white", bbox=LABEL_BOX)
    axes.set_yticks(range(len(rows)), [_row_label(one, rank) for one, rank, _ in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("ms since the step began (the median step)", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    kinds = [kind for kind in COLOURS if kind in used]
    axes.legend([used[kind] for kind in kinds], kinds, ncols=4 if len(kinds) > 6 else len(kinds), fontsize=7, frameon=False,
                loc="lower center", bbox_to_anchor=(0.5, 1.0))  # fmt: skip


def _draw_piece(axes: Axes, row: int, piece: Interval, limit: float, used: dict[str, Any]) -> None:
    kind, left, width = kind_of(piece), piece.begin * 1e3, (piece.end - piece.begin) * 1e3
    if width <= 0 or left >= limit:
        return
    edge = "white" if kind in ("forward", "backward", "compute") else "none"
    drawn = axes.barh(row, width, left=left, height=0.72, color=COLOURS[kind], edgecolor=edge, linewidth=0.4)
    used.setdefault(kind, drawn)
    number = piece.operation.rpartition(" ")[2]
    if kind in ("forward", "backward") and number.isdecimal() and width > limit * LEAST_NUMBERED:
        axes.text(left + width / 2, row, number, ha="center", va="center", fontsize=5, color="white", clip_on=True)


def _row_label(one: Measured, rank: int) -> str:
    name = f"{one.title}, {one.lanes} lane{'s' * (one.lanes != 1)}"
    return name if one.configuration.ranks == 1 else f"{name}  rank {rank}"


def kind_of(interval: Interval) -> str:
    """What an interval is drawn as: a stage's forward, backward or wait, else the part of the step."""
    word = interval.operation.partition(" ")[0]
    return word if word in ("forward", "backward", "wait") else interval.part


def _typical(one: Measured) -> tuple[tuple[Interval, ...], ...]:
    return min(one.rounds, key=lambda each: abs(each.step_s - one.step_s)).one_step


def _label(one: Measured) -> str:
    words = one.title.replace(" on ", "\non ").replace("1 rank, ", "1 rank,\n")
    return f"{words}\n{one.lanes} lane{'s' * (one.lanes != 1)}"
