"""`samebits report`: the page of one run, or several compared; and whether one is slower than the first."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from samebits.show.curves import first_difference
from samebits.show.run_data import RunData
from samebits.show.story import story_of


@dataclass(frozen=True)
class Compared:
    name: str
    ratio: float
    """Its samples/s divided by those of the first; NaN where one is not known."""
    difference: str
    """`loss at step 12`; empty where every metric that both logged agrees to the last bit."""


def compare(first: RunData, other: RunData) -> Compared:
    """Compare a run with the first."""
    found = []
    # A branch has nothing of the steps before it.
    after = max((one.course.parent.step for one in (first, other) if one.course.parent is not None), default=0)
    for name, curve in first.curves.by_name.items():
        theirs = other.curves.by_name.get(name)
        if theirs is not None and (step := first_difference(curve, theirs, after)) is not None:
            found.append((step, name))
    step, name = min(found, default=(0, ""))
    return Compared(other.name, other.samples_per_s / first.samples_per_s, f"{name} at step {step}" if name else "")


def comparison_data(runs: Sequence[RunData], *, most_slower: float | None = None) -> dict[str, Any]:
    """What the page of several runs shows; `most_slower`: a share, 0.1 for 10 %."""
    compared = [compare(runs[0], other) for other in runs[1:]]
    speeds = [
        _speed(runs[0], 1.0),
        *(_speed(one, found.ratio) for one, found in zip(runs[1:], compared, strict=True)),
    ]
    told = ["", *(found.difference or "none" for found in compared)]
    slow = slower(compared, most_slower) if most_slower is not None else []
    text = "; ".join(f"{one.name} has {one.ratio:.2f} times the speed" for one in slow) or "No run is slower than that."
    verdict = None if most_slower is None else {"ok": not slow, "text": f"At most {most_slower:.0%} slower: {text}"}
    return {
        "mode": "comparison",
        "stories": [story_of(data) for data in runs],
        "differences": told,
        "speeds": speeds,
        "verdict": verdict,
    }


def slower(compared: Sequence[Compared], most: float) -> list[Compared]:
    """Those that are slower than the first by more than the share `most`; a speed that is not known counts as slower."""
    return [one for one in compared if not one.ratio >= 1 - most]


def _speed(data: RunData, ratio: float) -> dict[str, float | None]:
    rate = data.samples_per_s
    return {
        "samples_per_s": rate if math.isfinite(rate) else None,
        "ratio": ratio if math.isfinite(ratio) else None,
    }


# One HTML file: the page's own files and the data in it, and nothing loaded from anywhere


def page(data: dict[str, Any]) -> str:
    """The whole page.

    Args:
        data: `mode` ("report", "comparison" or "live") and what that shows, as JSON values.
    """
    html = _text("page.html").replace("/*STYLE*/", f"{_text('uplot.css')}\n{_text('page.css')}")
    html = html.replace("/*SCRIPT*/", f"{_text('uplot.js')}\n{_text('page.js')}")
    return html.replace("/*DATA*/", embedded(data))


def embedded(data: dict[str, Any]) -> str:
    """JSON that no text of a run can end early, or turn into something else, inside of a page."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _text(name: str) -> str:
    return files("samebits.show").joinpath("page", name).read_text(encoding="utf-8")
