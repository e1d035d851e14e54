"""The figure of the note's comparison: its three bars, the sweep over micro-batches, and one step of every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lockstep.bench.picture import draw_bars, draw_steps
from lockstep.bench.results import Measured, Results
from lockstep.bench.stages import ideal_speed_up

DRAWN = 8
"""Micro-batches of the pipeline whose step is drawn."""


def draw_figure(results: Results, path: Path) -> None:
    """Write the figure; the format is that of the file's name."""
    whole = list(results.whole())
    single, naive = _of(whole, "single"), _of(whole, "naive split")
    pipelines, all_cores = _of(whole, "pipeline"), _of(whole, "1 rank, all cores")
    best = sorted(pipelines, key=lambda one: one.speed.median)[-1:]
    figure = Figure(figsize=(10.5, 7.2), dpi=140, layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(3.2, 2.6))
    bars = [*naive[:1], *single[:1], *best, *all_cores]
    draw_bars(figure.add_subplot(grid[0, 0]), results, bars)
    _draw_sweep(figure.add_subplot(grid[0, 1]), single, naive, pipelines)
    drawn = [one for one in pipelines if one.lanes == DRAWN] or best
    draw_steps(figure.add_subplot(grid[1, :]), [*single[:1], *naive[:1], *drawn])
    figure.savefig(path)


def _of(whole: list[Measured], title: str) -> list[Measured]:
    return sorted((one for one in whole if one.title == title), key=lambda one: one.lanes)


def _draw_sweep(axes: Any, single: list[Measured], naive: list[Measured], pipelines: list[Measured]) -> None:
    """Samples per second over the number of micro-batches, as in the tutorial's second figure."""
    for name, colour, found in (
        ("pipeline, 2 ranks", "#3b75af", pipelines),
        ("naive split, 2 ranks", "#c44e52", naive),
        ("single", "#666666", single),
    ):
        speeds = [one.speed for one in found]
        errors = [[one.median - one.low for one in speeds], [one.high - one.median for one in speeds]]
        lanes = [one.lanes for one in found]
        axes.errorbar(
            lanes, [one.median for one in speeds], yerr=errors, color=colour, marker="o", capsize=3, label=name
        )
    if naive and pipelines:
        lanes = [one.lanes for one in pipelines]
        ideal = [naive[0].speed.median * ideal_speed_up(2, count) for count in lanes]
        axes.plot(lanes, ideal, color="#3b75af", linestyle=":", label="naive split x 2 / (1 + 1/m)")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({one.lanes for one in (*single, *naive, *pipelines)}))
    axes.get_xaxis().set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("micro-batches (lanes)", fontsize=8)
    axes.set_ylabel("samples/s")
    axes.legend(fontsize=7, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
