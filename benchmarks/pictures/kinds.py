"""The picture of several kinds of machines: for each line a bar of each kind, as the share of what that machine allows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = ("#3b75af", "#e0a030", "#5a9e5a", "#8a6fb0", "#c44e52", "#666666")
MOST_SHOWN = 1.2

Shares = Mapping[str, Mapping[str, float]]
"""By kind of machine and line."""


def draw_kinds(shares: Shares, path: Path) -> None:
    """Write the picture; the format is that of the file's name. 1 is the limit that was measured beside it.

    Lines are "what, way". What was measured in the same ways stands in one block, with the ways beside each other.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and half a second that only a picture needs

    found = blocks(shares)
    heights = [0.9 + len(rows) * (0.06 + 0.09 * len(shares)) for rows in found.values()]
    figure = Figure(figsize=(11, 0.5 + sum(heights)), dpi=110, layout="constrained")
    parts = figure.subfigures(len(found), 1, height_ratios=heights, squeeze=False)
    for part, (ways, rows) in zip(parts.flat, found.items(), strict=True):
        for axes, way in zip(part.subplots(1, len(ways), sharey=True, squeeze=False).flat, ways, strict=True):
            _draw(axes, way, rows, shares)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=1, frameon=False, fontsize=8)
    figure.savefig(path)


def blocks(shares: Shares) -> dict[tuple[str, ...], list[str]]:
    """What was measured, by the ways in which it was."""
    ways: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(name for of_kind in shares.values() for name in of_kind):
        what, _, way = name.rpartition(", ")
        ways[what or way].append(way if what else "")
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for what, of_what in ways.items():
        found[tuple(of_what)].append(what)
    return found


def _draw(axes: Any, way: str, rows: Sequence[str], shares: Shares) -> None:
    height = 0.85 / max(1, len(shares))
    for number, (kind, of_kind) in enumerate(shares.items()):
        values = [of_kind.get(f"{row}, {way}" if way else row) for row in rows]
        there = [(at + number * height, value) for at, value in enumerate(values) if value is not None]
        widths = [min(MOST_SHOWN, value) for _, value in there]
        colour = COLOURS[number % len(COLOURS)]
        for at, value in there:
            if value > MOST_SHOWN:
                axes.text(MOST_SHOWN, at + height / 2, f"{value:.2g} >", va="center", ha="right", fontsize=5, color="w")
        axes.barh([at for at, _ in there], widths, height=height, align="edge", color=colour, label=kind)
    axes.set_yticks([at + 0.425 for at in range(len(rows))], rows, fontsize=7)
    axes.set_ylim(len(rows), 0)
    axes.set_xlim(0, MOST_SHOWN)
    axes.set_title(f"{way}: share of the limit" if way else "share of the limit", fontsize=8)
    axes.axvline(1.0, color="#333333", linewidth=0.7, linestyle=":")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=7)
