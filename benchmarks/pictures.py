"""The picture of `steps --picture`: where the time of a step goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.summary import BACKWARD, EXCHANGE, FORWARD, PHASES, REST, UPDATE, Line
from samebits.protocol.installation import to_install

FORMATS = (".png", ".svg", ".pdf")
COLOURS = {FORWARD: "#27507a", BACKWARD: "#7fb3dc", EXCHANGE: "#c44e52", UPDATE: "#5a9e5a", REST: "#b0b0b0"}
BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
"""So that a number can be read where it meets the line of DDP's step."""


def cannot_draw(path: Path) -> str:
    """Why `--picture PATH` cannot be met, in one sentence; empty when it can."""
    if path.suffix not in FORMATS:
        return f"--picture {path} must end with {', '.join(FORMATS)}."
    if not path.absolute().parent.is_dir():
        return f"--picture {path}: there is no folder {path.parent}. Make it, or name another."
    return "" if find_spec("matplotlib") else f"--picture needs matplotlib: {to_install('plot')}."


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
        found.append((line.what, f"samebits, {line.ours}", line.notes[line.ours], whole))
    return found
