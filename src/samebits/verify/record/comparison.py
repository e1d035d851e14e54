"""Two records: the first step that differs, what only one has, and under which conditions each was made. Pure.

Equal links mean equal beginnings, so the first place where two chains part is found by bisection. They part where conditions
differ too: from there on what stands of each step is compared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from samebits.protocol.record.difference import WORDS, lanes_apart
from samebits.protocol.record.lines import CHAIN, split
from samebits.protocol.record.reading import Record
from samebits.verify.record.conditions import Json, rows_apart
from samebits.verify.record.description import title_of

LANES = "lanes"


def compared(left: Record, right: Record) -> Json:
    """What differs. `same` says whether steps and ends are equal, whatever the conditions were."""
    common = [step for step in left.lines if step in right.lines]
    first = first_apart(left, right, common)
    sides = {"left": left, "right": right}
    only = {name: _stretches(left if name == "left" else right, common) for name in sides}
    ends = {name: _end(one) for name, one in sides.items()}
    broken = {name: one.broken for name, one in sides.items()}
    is_same = first is None and not any(only.values()) and ends["left"] == ends["right"] and not any(broken.values())
    return {
        "same": is_same,
        **{
            name: {"run": title_of(one), "record": str(one.path), "steps": len(one.lines)}
            for name, one in sides.items()
        },
        "steps": len(common),
        "same_steps": len(common) if first is None else common.index(first["step"]),
        "first": first,
        "conditions": _conditions(left, right, common, first),
        "only": only,
        "ends": ends,
        "broken": broken,
    }


def first_apart(left: Record, right: Record, common: list[int]) -> Json | None:
    """The first step of which the two say something else: which word, both lines, and the lanes whose samples differ."""
    start = 0
    if not (left.broken or right.broken):
        start = bisect_left(common, True, key=lambda step: left.link(step) != right.link(step))
    for step in common[start:]:
        if split(left.lines[step])[0] != split(right.lines[step])[0] and (found := _apart(left, right, step)):
            return found
    return None


def _apart(left: Record, right: Record, step: int) -> Json | None:
    one, other = (
        {key: value for key, value in (record.step(step) or {}).items() if key != CHAIN} for record in (left, right)
    )
    keys = [key for key in (*WORDS, LANES) if one.get(key) != other.get(key)]
    if not keys:
        return None
    rows = [{"what": key, "left": one.get(key), "right": other.get(key)} for key in keys]
    lanes = lanes_apart(str(one.get(LANES, "")), str(other.get(LANES, "")))
    return {"step": step, "epoch": one.get("epoch"), "differs": rows, "lanes": list(lanes)}


def _conditions(left: Record, right: Record, common: list[int], first: Json | None) -> list[Json]:
    """Those that differ, where the records begin, and where they part or end."""
    if not common:
        return []
    place = first["step"] if first is not None else common[-1]
    rows: dict[str, Json] = {}
    for step in (common[0], place):
        for row in rows_apart(left.conditions_of(step), right.conditions_of(step)):
            rows[row["condition"]] = row
    return list(rows.values())


def _stretches(record: Record, common: Iterable[int]) -> list[list[int]]:
    """The steps that only this one has, first and last of each stretch."""
    shared, found = set(common), list[list[int]]()
    is_open = False
    for step in record.lines:
        if step in shared:
            is_open = False
        elif is_open:
            found[-1][1] = step
        else:
            is_open = True
            found.append([step, step])
    return found


def _end(record: Record) -> dict[str, Any] | None:
    return None if record.end is None else {"step": record.end[0], "bits": record.end[1]}
