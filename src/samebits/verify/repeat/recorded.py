"""What a run's processes recorded, read back, and why nothing can be compared where that is so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
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
    is_normal: bool
    """Whether it ended as a process does; otherwise by `os._exit`."""
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
    last = [_last_line(path) for path in files]
    if threads := next((line["threads"] for line in last if "threads" in line), None):
        return (
            f"Two threads of one process train at once, {' and '.join(threads)}: whose step comes first is chance, so no two runs "
            "can be compared. Train in one thread at a time, or verify a script that trains one of the models."
        )
    is_recorded = bool(files) and all(line.get("cut") for line in last)
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


def _without_end(ended: Ended, last: int) -> str:
    """A process ended so that Python could not say how far it came, though what started it saw no failure."""
    before = f"; with --steps {last} the steps before that are compared" if last else ""
    return (
        f"A process that trains ended by itself in or behind step {last + 1}, and not as Python ends (a C library called _exit, "
        f"or a signal came that nobody reported), so what it did there is not known{before}.{ended.last_words}"
    )


def _last_line(path: Path) -> Mapping[str, Any]:
    """What the process wrote last, as a whole."""
    for line in reversed(path.read_text().splitlines()):
        with suppress(ValueError):
            return json.loads(line)  # type: ignore[no-any-return]
    return {}


def _read(ended: Ended, files: list[Path]) -> Made | str:
    if not_over := [line.get("last", 0) for line in map(_last_line, files) if "end" not in line]:
        return _without_end(ended, min(not_over))
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
        ends.append(lines[-1])
    if not_moved := [path for end in ends for path in end.get("not_moved", ())]:
        return (
            f"It imported {not_moved[0]} of this tree instead of the commit's, so the commit is not what ran. "
            "Add the folder from which that is imported to PYTHONPATH: there the commit's own takes its place."
        )
    is_cut, is_normal = (all(end[word] for end in ends) for word in ("cut", "normal"))
    spent = max(end["spent_s"] / end["took_s"] if end["took_s"] else 0.0 for end in ends)
    evidence = Evidence(tuple(ranks), End(over=True, reached=not is_cut), norms)
    steps, has_workers = min(end["end"] for end in ends), any(end.get("workers") for end in ends)
    drawn = ends[0].get("drawn", {})
    how = is_cut, is_normal, ended.seconds, spent, ended
    return Made(ended.label, evidence, facts, steps, *how, drawn, has_workers)
