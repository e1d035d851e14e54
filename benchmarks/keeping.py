"""Results of one kind of machine: a file in benchmarks/results, whose parts are replaced when they are measured again.

Medians and blocks are kept, not every round; a line of the file for each line of the table.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.kinds import MachineKind, this_kind
from benchmarks.summary import Line

RESULTS = Path(__file__).parent / "results"
FORMAT = 1
NOT_KEPT = {"rounds", "notes"}
"""Of a line."""


def cannot_keep(folder: Path = RESULTS) -> str:
    """Why nothing could be kept, in one sentence, before anything is measured; empty when it can be."""
    path = folder / f"{this_kind().name}.json"
    place = folder if folder.is_dir() else folder.parent
    if not os.access(place, os.W_OK):
        return f"--keep: the results cannot be kept in {place}, where you may not write. Take a copy that is yours."
    try:
        if path.exists():
            read(path)
    except ValueError as problem:
        return f"--keep: {problem}"
    return ""


def keep(parts: Mapping[str, list[dict[str, Any]]], folder: Path = RESULTS, load: float = 0.0) -> Path:
    """Write these parts' lines into the file of this kind of machine; other parts stay. Returns the file.

    `load` is what the machine was busy with when measuring began, in processes.
    """
    kind = this_kind()
    path = folder / f"{kind.name}.json"
    before = read(path)["parts"] if path.exists() else {}
    when = {"date": dt.datetime.now(tz=dt.UTC).date().isoformat(), "commit": commit(), "torch": version("torch")}
    now = {
        name: {**when, "rounds": _num_rounds(lines), "load": round(load, 1), "lines": [_short(line) for line in lines]}
        for name, lines in parts.items()
    }
    folder.mkdir(exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(as_text(asdict(kind), {**before, **now}))
    temporary.replace(path)
    return path


def as_text(kind: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The file: JSON, in which each part and each of its lines has a line."""

    def one(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    told = []
    for name, part in sorted(parts.items()):
        head = one({key: value for key, value in part.items() if key != "lines"})[:-1]
        told.append(f'{one(name)}: {head}, "lines": [\n' + ",\n".join(map(one, part["lines"])) + "\n]}")
    return f'{{"format": {FORMAT}, "kind": {one(kind)}, "parts": {{\n' + ",\n".join(told) + "\n}}\n"


def _num_rounds(lines: Sequence[Mapping[str, Any]]) -> int:
    """The fewest of a line; 0 without lines."""
    return min((len(next(iter(line["rounds"].values()), ())) for line in lines), default=0)


def read(path: Path) -> dict[str, Any]:
    """A file of `keep`, with its `kind` as a MachineKind.

    Raises:
        ValueError: when it is something else; says so in one sentence.
    """
    try:
        told = json.loads(path.read_text())
        kind, parts = MachineKind(**told["kind"]), dict(told["parts"])
        is_ours = told["format"] == FORMAT and all(map(_is_part, parts.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        is_ours = False
    if not is_ours:
        raise ValueError(f"{path} is no file of results. Write one with: python -m benchmarks PART --keep")
    return {"kind": kind, "parts": parts}


def _is_part(part: Mapping[str, Any]) -> bool:
    needed = {field.name for field in fields(Line)} - NOT_KEPT
    return {"date", "commit", "torch"} <= set(part) and all(needed <= set(line) for line in part["lines"])


def commit() -> str:
    """Of the source that was measured, with a + when it has been changed since; empty where git does not know."""
    command = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _short(line: Mapping[str, Any]) -> dict[str, Any]:
    """With five digits: no more of a median comes back."""
    kept = {name: value for name, value in line.items() if name not in NOT_KEPT}
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in kept.items()}
