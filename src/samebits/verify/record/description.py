"""What a record says, as values of JSON: a run's words, what its bits depend on, steps, states, the end, and whether its chain holds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.machine.visible import visible
from samebits.protocol.record.difference import step_difference
from samebits.protocol.record.lines import STEP
from samebits.protocol.record.reading import FILE, Record, read_record
from samebits.protocol.state_files.manifest import NAME
from samebits.verify.audit.checked import SavedState, record_at, saved_states
from samebits.verify.record.conditions import Json, rows_apart


def read_at(word: str, runs: Path) -> Record:
    """The record that a word names: a run, a folder with a record, or the file.

    Raises:
        UsageError: when there is none, or it cannot be read.
    """
    return read_record(record_at(word, runs))


def described(record: Record) -> Json:
    """All of it but the steps' own lines."""
    states, damaged = saved_states(record)
    newest: Mapping[str, Any] = record.starts[-1] if record.starts else {}
    return {
        "record": str(record.path),
        "size_bytes": record.num_bytes,
        "script": newest.get("script", ""),
        "arguments": newest.get("arguments", []),
        "starts": [dict(one) for one in record.starts],
        "conditions": _conditions(record),
        "steps": len(record.lines),
        "first": next(iter(record.lines), None),
        "last": record.last or None,
        "epochs": (record.step(record.last) or {}).get("epoch"),
        "loss": {str(step): (record.step(step) or {}).get("loss") for step in _ends(record)},
        "gaps": [list(one) for one in record.gaps],
        "is_cut": record.is_cut,
        "states": [_state(one) for one in states.values()],
        "damaged_states": {str(step): why for step, why in damaged.items()},
        "end": {"step": record.end[0], "bits": record.end[1]} if record.end is not None else None,
        "link": record.link(record.last),
        "holds": not record.broken,
        "broken": record.broken,
        "differs": difference_of(record),
    }


def _ends(record: Record) -> list[int]:
    return sorted({next(iter(record.lines)), record.last}) if record.lines else []


def _conditions(record: Record) -> list[Json]:
    """The first as they are; of others what is not as before."""
    found: list[Json] = []
    before: Mapping[str, Any] = {}
    for after, conditions in record.conditions:
        changed = rows_apart(before, conditions) if found else []
        found.append({"after": after, "conditions": dict(conditions), "changed": changed})
        before = conditions
    return found


def _state(state: SavedState) -> Json:
    is_there = state.manifest is not None
    sizes = [file.size for file in state.manifest.files.values()] if state.manifest is not None else []
    return {
        "step": state.step,
        "is_there": is_there,
        "size_bytes": sum(sizes) if is_there else None,
        "files": {name: digest for name, digest in state.files.items() if name != NAME},
    }


def difference_of(record: Record) -> Json | None:
    """The step that came again otherwise: both lines, and in which word they differ first."""
    if record.differs is None:
        return None
    was, now = record.differs["was"], record.differs["is"]
    found = step_difference(was, now)
    return {
        "step": was[STEP],
        "was": dict(was),
        "is": dict(now),
        "key": found.key if found is not None else STEP,
        "lanes": list(found.lanes) if found is not None else [],
    }


def step_of_record(record: Record, number: int) -> Json:
    """The line of one step, with where the conditions stand that it was made under.

    Raises:
        UsageError: when the record has no such step.
    """
    line = record.step(number)
    if line is None:
        first = next(iter(record.lines), 0)
        has = f"has steps {first} to {record.last}" if record.lines else "has no step yet"
        gap = next((one for one in record.gaps if one[0] <= number <= one[1]), None)
        raise UsageError(
            f"Step {number} is not in {visible(str(record.path))}, which {has}"
            + (f", but not {gap[0]} to {gap[1]}." if gap else "."),
            "Name a step that it has.",
        )
    after = max((after for after, _ in record.conditions if after < number), default=None)
    return {**line, "conditions_after": after}


def title_of(record: Record) -> str:
    """How a record is called: the run's name, or the file's."""
    path = Path(os.path.abspath(record.path))  # noqa: PTH100 - the name as the person gave it
    return path.parent.name if path.name == FILE else path.name
