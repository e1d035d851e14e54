"""What a run's processes recorded, read back, and why nothing can be compared where that is so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.verify.evidence import End, Evidence, ItemAtStep, Recorded, parse, parse_norms
from samebits.verify.repeat.started import Ended

NO_STEP = "no optimizer of torch made a step in a process of the script, and what a script adds to its parameters by itself is not seen"


@dataclass(frozen=True)
class Made:
    """A run with its evidence."""

    label: str
    evidence: Evidence
    facts: Mapping[str, Any]
    """What its bits depend on, of rank 0."""
    steps: int
    is_cut: bool
    """Whether it was ended behind the last step; otherwise the script ended by itself."""
    seconds: float
    spent: float
    """The part of its time from the first update on that the recording took."""
    ended: Ended
    drawn: Mapping[str, str]
    """A mark of the seed of each generator of the process that was drawn from."""
    has_workers: bool
    """Whether processes of its own were there at the first update."""


def read_made(ended: Ended, limit_s: float) -> Made | str:
    """The run with its evidence, or one sentence that says why there is nothing to compare."""
    files = sorted(ended.folder.glob("rank-*.jsonl"))
    is_recorded = bool(files) and all(map(_is_cut, files))
    # What a script does when it is ended behind the last step, such as waiting for a process, has no bits.
    if ended.is_late and not is_recorded:
        few = "too few steps were made" if files else f"until then {NO_STEP}"
        return f"It was ended after {limit_s:g} s (--timeout): {few}.{ended.last_words}"
    if ended.code and not is_recorded:
        how = f"by signal {-ended.code}" if ended.code < 0 else f"with exit code {ended.code}"
        return f"It ended {how}.{ended.last_words}"
    if not files:
        return f"There is nothing to compare: {NO_STEP}.{ended.last_words}"
    if several := [path for path in files if not path.name.endswith(".1.jsonl")]:
        return (
            f"{len(several) + 1} processes of the script train and say that they are the same rank, so it is not known "
            "which belong together. Verify the script that they run, or give each its RANK."
        )
    return _read(ended, files)


def _is_cut(path: Path) -> bool:
    """Whether the process has made all steps that were wanted."""
    lines = path.read_text().splitlines()
    return bool(lines) and bool(json.loads(lines[-1]).get("cut"))


def _read(ended: Ended, files: list[Path]) -> Made | str:
    ranks: list[Recorded] = []
    facts: Mapping[str, Any] = {}
    ends: list[Mapping[str, Any]] = []
    norms: Mapping[ItemAtStep, float] = {}
    for path in files:
        text = path.read_text().splitlines()
        lines = [json.loads(line) for line in text]
        ranks.append(parse(iter(text)))
        norms = norms or parse_norms(iter(text))
        facts = facts or lines[0]["facts"]
        ends += [line for line in lines if "end" in line][-1:]
    if len(ends) < len(files):
        return f"A process that trains was ended before it could say how far it came.{ended.last_words}"
    if not_moved := [path for end in ends for path in end.get("not_moved", ())]:
        return (
            f"It imported {not_moved[0]} of this tree instead of the commit's, so the commit is not what ran. "
            "Add the folder from which that is imported to PYTHONPATH: there the commit's own takes its place."
        )
    is_cut = all(end["cut"] for end in ends)
    spent = max(end["spent_s"] / end["took_s"] if end["took_s"] else 0.0 for end in ends)
    evidence = Evidence(tuple(ranks), End(over=True, reached=not is_cut), norms)
    steps, has_workers = min(end["end"] for end in ends), any(end.get("workers") for end in ends)
    drawn = ends[0].get("drawn", {})
    return Made(ended.label, evidence, facts, steps, is_cut, ended.seconds, spent, ended, drawn, has_workers)
