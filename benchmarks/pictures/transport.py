"""The picture of `transport`: time over size, both in powers, one panel for each collective of two ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cases import BY_TORCH, GLOO, ORDINARY, SWEPT, WINDOWS, size_text
from benchmarks.summary import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LIMIT = "limit: a bare loop"
STYLES = {
    GLOO: ("#c44e52", "o-", "Gloo"),
    BY_TORCH: ("#8a6fb0", "^-", "lockstep (torch.distributed)"),
    ORDINARY: ("#e0a030", "s-", "lockstep (ordinary tensors)"),
    WINDOWS: ("#3b75af", "D-", "lockstep (windows)"),
    LIMIT: ("#666666", ":", LIMIT),
}
TITLES = {"send": "send and back"}
CAPTION = "2 ranks, float32; slowest rank, median.\nUp to 16 KiB hot, larger ones cold:\nthey come from memory."
POINTS = "points"
"""The note of a line that is drawn: collective and size."""


def draw_transport(lines: Sequence[Line], path: Path) -> None:
    """Write the picture; the format is that of the file's name."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and half a second that only a picture needs

    figure = Figure(figsize=(11.5, 7.2), dpi=140, layout="constrained")
    panels = list(figure.subplots(2, 3, sharex=True, sharey=True).flat)
    for axes, collective in zip(panels, SWEPT, strict=False):
        _panel(axes, collective, series(lines, collective))
    last = panels[-1]
    last.axis("off")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    last.legend(handles, labels, loc="center", frameon=False, fontsize=10)
    last.text(0.5, 0.16, CAPTION, ha="center", va="top", fontsize=8, transform=last.transAxes)
    figure.savefig(path)


def series(lines: Sequence[Line], collective: str) -> dict[str, list[tuple[int, float]]]:
    """Size in bytes and time in microseconds of each side, by size; the limit where there is one."""
    found: dict[str, dict[int, float]] = {side: {} for side in STYLES}
    for line in lines:
        points = line.notes.get(POINTS, {})
        if collective not in points:
            continue
        size = int(points[collective])
        found[line.ours][size] = line.amount / 1e3
        found[GLOO][size] = line.other_amount / 1e3
        if line.limit_amount:
            found[LIMIT][size] = line.limit_amount / 1e3
    return {side: sorted(of_side.items()) for side, of_side in found.items() if of_side}


def _panel(axes: Axes, collective: str, found: dict[str, list[tuple[int, float]]]) -> None:
    for side, points in found.items():
        colour, style, label = STYLES[side]
        axes.plot(*zip(*points, strict=True), style, color=colour, label=label, markersize=3.5, linewidth=1.4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(TITLES.get(collective, collective), fontsize=10)
    axes.set_xlabel("size", fontsize=8)
    axes.set_ylabel("µs", fontsize=8)
    ticks = [1 << power for power in range(2, 28, 5)]
    axes.set_xticks(ticks, [size_text(size) for size in ticks], fontsize=7)
    axes.tick_params(labelleft=True, labelbottom=True, labelsize=7)
    axes.grid(color="#eeeeee")
    axes.spines[["top", "right"]].set_visible(False)
