"""The picture of several kinds of machines: for each line a bar of each kind, as the share of what that machine allows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

COLOURS = ("#3b75af", "#e0a030", "#5a9e5a", "#8a6fb0", "#c44e52", "#666666")
MOST_SHOWN = 1.2


def draw_kinds(shares: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Write the picture; the format is that of the file's name. 1 is the limit that was measured beside it."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and half a second that only a picture needs

    names = list(dict.fromkeys(name for of_kind in shares.values() for name in of_kind))
    figure = Figure(figsize=(9.5, 1.3 + len(names) * (0.08 + 0.11 * len(shares))), dpi=140, layout="constrained")
    axes = figure.subplots()
    height = 0.85 / max(1, len(shares))
    for number, (kind, of_kind) in enumerate(shares.items()):
        places = [at + number * height for at, name in enumerate(names) if name in of_kind]
        widths = [min(MOST_SHOWN, of_kind[name]) for name in names if name in of_kind]
        axes.barh(places, widths, height=height, align="edge", color=COLOURS[number % len(COLOURS)], label=kind)
    axes.set_yticks([at + 0.425 for at in range(len(names))], names, fontsize=6)
    axes.set_ylim(len(names), 0)
    axes.set_xlim(0, MOST_SHOWN)
    axes.set_xlabel("of the limit measured beside it", fontsize=8)
    axes.axvline(1.0, color="#333333", linewidth=0.7, linestyle=":")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=7)
    figure.legend(loc="outside upper center", ncols=1, frameon=False, fontsize=7)
    figure.savefig(path)
