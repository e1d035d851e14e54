"""Pictures of measurements: where the time of a step goes (`steps --picture`), and kinds of machines side by side (`compare`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.summary import BACKWARD, EXCHANGE, FORWARD, PHASES, REST, UPDATE, Line

FORMATS = (".png", ".svg", ".pdf")
KINDS = ("#3b75af", "#e0a030", "#5a9e5a", "#8a6fb0", "#c44e52", "#666666")
MOST_SHOWN = 1.2
COLOURS = {FORWARD: "#27507a", BACKWARD: "#7fb3dc", EXCHANGE: "#c44e52", UPDATE: "#5a9e5a", REST: "#b0b0b0"}
BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
"""So that a number can be read where it meets the line of DDP's step."""

UnreducedMetrics = Mapping[str, Mapping[str, float]]
"""By kind of machine and line."""


def cannot_draw(path: Path) -> str:
    """Why `--picture PATH` cannot be met, in one sentence; empty when it can."""
    if path.suffix not in FORMATS:
        return f"--picture {path} must end with {', '.join(FORMATS)}."
    if not path.absolute().parent.is_dir():
        return f"--picture {path}: there is no folder {path.parent}. Make it, or name another."
    return "" if find_spec("matplotlib") else "--picture needs matplotlib: pip install 'lockstep-train[plot]'."


def draw_kinds(shares: UnreducedMetrics, path: Path) -> None:
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


def blocks(shares: UnreducedMetrics) -> dict[tuple[str, ...], list[str]]:
    """What was measured, by the ways in which it was."""
    ways: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(name for of_kind in shares.values() for name in of_kind):
        what, _, way = name.rpartition(", ")
        ways[what or way].append(way if what else "")
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for what, of_what in ways.items():
        found[tuple(of_what)].append(what)
    return found


def _draw(axes: Any, way: str, rows: Sequence[str], shares: UnreducedMetrics) -> None:
    height = 0.85 / max(1, len(shares))
    for number, (kind, of_kind) in enumerate(shares.items()):
        values = [of_kind.get(f"{row}, {way}" if way else row) for row in rows]
        there = [(at + number * height, value) for at, value in enumerate(values) if value is not None]
        widths = [min(MOST_SHOWN, value) for _, value in there]
        colour = KINDS[number % len(KINDS)]
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


def draw_steps(lines: Sequence[Line], path: Path) -> None:
    """Write the picture; the format is that of the file's name. Every model has its own scale: 1 is DDP's step."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and half a second that only a picture needs

    bars = rows(lines)
    figure = Figure(figsize=(9.5, 1.2 + 0.3 * len(bars)), dpi=140, layout="constrained")
    axes = figure.subplots()
    places, at = [], 0.0
    for number, (what, _, parts, whole) in enumerate(bars):
        at += 1.0 if number == 0 or bars[number - 1][0] == what else 2.0
        places.append(at)
        left = 0.0
        for phase in PHASES:
            share = parts[phase] / whole
            axes.barh(at, share, left=left, color=COLOURS[phase], height=0.85, label=phase if number == 0 else None)
            left += share
        axes.text(left + 0.01, at, _said(sum(parts.values()), whole), va="center", fontsize=7, bbox=BEHIND)
        if number == 0 or bars[number - 1][0] != what:
            axes.text(0.0, at - 0.95, what, va="center", fontsize=8, fontweight="bold")
    axes.set_yticks(places, [label for _, label, _, _ in bars], fontsize=8)
    axes.set_ylim(at + 0.8, -0.8)
    axes.set_xlabel("of the step of the best-tuned DDP (2 ranks)", fontsize=8)
    axes.axvline(1.0, color="#333333", linewidth=0.7, linestyle=":", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=7)
    figure.legend(loc="outside upper center", ncols=len(PHASES), frameon=False, fontsize=8)
    figure.savefig(path)


def _said(total: float, whole: float) -> str:
    if total == whole:
        return f"{total / 1e6:.1f} ms"
    return f"{total / 1e6:.1f} ms, DDP beside it {whole / 1e6:.1f}"


def rows(lines: Sequence[Line]) -> list[tuple[str, str, Mapping[str, float], float]]:
    """What was trained, the side, its phases in nanoseconds, and the whole step that is its scale.

    DDP comes first, as it was beside the first of our strategies; every strategy is scaled by the DDP beside it.
    """
    found: list[tuple[str, str, Mapping[str, float], float]] = []
    seen: set[str] = set()
    for line in lines:
        if not line.notes:
            continue
        whole = sum(line.notes[line.other].values())
        if line.what not in seen:
            found.append((line.what, line.other, line.notes[line.other], whole))
        seen.add(line.what)
        found.append((line.what, f"lockstep, {line.ours}", line.notes[line.ours], whole))
    return found
