"""The first operator at which two sides part: of what `witness.operators` wrote on each, one line for each operator of a step.

Pure functions over these lines. An operator whose inputs are equal and whose results are not is the answer. Where inputs differ
that no earlier operator made, they came from outside torch: data, a number from Python, random numbers. Where the two
sequences of operators part, that place is the answer.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any

from samebits.verify.evidence import is_hash, readable

IGNORED = ("profiler.", "aten.detach.")
"""What computes nothing, and comes once more where something is compiled."""
UNWRITTEN = "unwritten"
"""In place of the hash of memory that no operator has written to: it may be equal to anything."""


class Why(StrEnum):
    """What kind of place it is."""

    OPERATOR = "operator"
    """Equal inputs, other results."""
    INPUT = "input"
    """Inputs from outside torch's operators differ."""
    ARGUMENT = "argument"
    """A number or a word that it is called with differs."""
    GENERATOR = "generator"
    """The state of the random numbers differs."""
    SEQUENCE = "sequence"
    """One side calls another operator here."""


@dataclass(frozen=True)
class Operator:
    """A call of one."""

    number: int
    """Among those of its place, from 0 on."""
    name: str
    line: str
    is_backward: bool
    shapes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    place: str = ""
    """Where in the step, if it is known: `1 3` is in lane 3 behind the beginning of the first pass, `1 -1` in no lane."""


@dataclass(frozen=True)
class Parting:
    """Where two sides part."""

    why: Why
    step: int
    number: int
    """The operator's number among those of its place, from 0 on."""
    name: str
    other_name: str
    """The one of the other side, if it is another one; empty where that side has none."""
    line: str
    other_line: str
    is_backward: bool
    shapes: tuple[str, ...]
    values: tuple[str, str] | None = None
    """The argument on both sides, where that is why."""
    ulps: float | None = None
    """The largest difference, in units of the last place; None where it is not known."""
    most: float | None = None
    """The largest difference."""
    lane: int | None = None
    """The first lane in which they part; None outside of lanes."""
    lanes: tuple[int, ...] = ()
    """All lanes in which they do."""
    sides: tuple[str, str] = ("one side", "the other")
    """What people call them."""


def read_operators(path: Path) -> list[Operator]:
    """What one process wrote; empty where it wrote nothing."""
    if not path.exists():
        return []
    counts: dict[str, int] = {}
    found: list[Operator] = []
    for line in map(json.loads, path.read_text().splitlines()):
        number = counts.get(line["place"], 0)
        counts[line["place"]] = number + 1
        if not line["name"].startswith(IGNORED):
            shapes, inputs, outputs = (tuple(line[key]) for key in ("shapes", "in", "out"))
            at = line["line"], line["backward"]
            found.append(Operator(number, line["name"], *at, shapes, inputs, outputs, line["place"]))
    return found


def first_parting(ours: Sequence[Operator], theirs: Sequence[Operator], step: int) -> Parting | None:
    """Where they part; None if both did the same with the same."""
    for left, right in zip_longest(ours, theirs):
        if left is None or right is None or left.name != right.name:
            return _parting(Why.SEQUENCE, step, left, right)
        if not _alike(left.inputs, right.inputs):
            why, values = _why_inputs(left.inputs, right.inputs)
            return replace(_parting(why, step, left, right), values=values)
        if not _alike(left.outputs, right.outputs):
            return _parting(Why.OPERATOR, step, left, right)
    return None


def _alike(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    return len(ours) == len(theirs) and not any(_differing(ours, theirs))


def _differing(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[str, str]]:
    pairs = zip_longest(ours, theirs, fillvalue="nothing")
    return [pair for pair in pairs if pair[0] != pair[1] and UNWRITTEN not in pair]


def _why_inputs(ours: Sequence[str], theirs: Sequence[str]) -> tuple[Why, tuple[str, str] | None]:
    """What kind of inputs differ; of arguments the first pair, readable."""
    pairs = _differing(ours, theirs)
    # One side may draw nothing.
    if all("generator" in (one.partition(" ")[0], other.partition(" ")[0]) for one, other in pairs):
        return Why.GENERATOR, None
    plain = [pair for pair in pairs if not any(is_hash(one) for one in pair)]
    if len(plain) < len(pairs):
        return Why.INPUT, None
    return Why.ARGUMENT, (readable(plain[0][0]), readable(plain[0][1]))


def _parting(why: Why, step: int, left: Operator | None, right: Operator | None) -> Parting:
    one = left or right
    assert one is not None
    other = right if left is not None else None
    return Parting(
        why, step, one.number, one.name, other.name if other is not None and other.name != one.name else "",
        one.line, other.line if other is not None and other.line != one.line else "", one.is_backward, one.shapes,
    )  # fmt: skip


def with_values(parting: Parting, ours: Path, theirs: Path) -> Parting:
    """The same with how far apart the results are."""
    if not ours.exists() or not theirs.exists():
        return parting
    left, right = json.loads(ours.read_text()), json.loads(theirs.read_text())
    most = ulps = 0.0
    for one, other in zip(left, right, strict=False):
        for a, b in zip(_numbers(one), _numbers(other), strict=False):
            most = max(most, abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf * (a != b))
            ulps = max(ulps, ulps_apart(a, b, one["dtype"]))
    return replace(parting, most=most, ulps=ulps) if most else parting


def _numbers(result: Mapping[str, Any]) -> list[float]:
    return [float.fromhex(one) if isinstance(one, str) else float(one) for one in result["values"]]


MANTISSA = {"float64": 52, "float32": 23, "bfloat16": 7, "float16": 10, "complex64": 23, "complex128": 52}
"""Bits behind the point of each dtype."""


def ulps_apart(one: float, other: float, dtype: str) -> float:
    """How many numbers of the dtype lie between them; 0 for one that has no units of the last place."""
    if dtype not in MANTISSA or one == other or not (math.isfinite(one) and math.isfinite(other)):
        return 0.0
    drop = 52 - MANTISSA[dtype]
    return float(abs(_place(one) - _place(other)) >> drop)


def _place(number: float) -> int:
    """Its place among all doubles in their order."""
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return int(bits) if bits >= 0 else -(bits & 0x7FFFFFFFFFFFFFFF)


def operator_lines(parting: Parting, *, data: str = "they are data", values: str = "") -> Iterator[str]:
    """Where two sides part, for a person.

    Args:
        parting: what was found.
        data: what inputs are that no operator made.
        values: what to say where it is not known how far apart results are.
    """
    lane = f", lane {parting.lane}" if parting.lane is not None else ""
    way = f"{'backward' if parting.is_backward else 'forward'}{lane}"
    at = f" at {_short(parting.line)}" if parting.line else ""
    shapes = f" of {', '.join(parting.shapes)}" if parting.shapes else ""
    left, right = parting.sides
    if parting.why is Why.OPERATOR:
        far = f": up to {parting.most:.3g}, {parting.ulps:.0f} ulp" if parting.most is not None else values
        yield f"operator: {parting.name}{shapes}{at} ({way}) has equal inputs and other results{far}"
    elif parting.why is Why.ARGUMENT and parting.values is not None:
        one, other = parting.values
        yield f"operator: {parting.name}{shapes}{at} ({way}) is called with {one} by {left} and with {other} by {right}"
    elif parting.why is Why.GENERATOR:
        yield f"operator: {parting.name}{at} ({way}) draws from random numbers that are in another state"
    elif parting.why is Why.INPUT:
        yield f"operator: {parting.name}{shapes}{at} ({way}) gets other inputs, which no operator of torch made: {data}"
    else:
        other = f"{parting.other_name or 'nothing'}{f' at {_short(parting.other_line)}' if parting.other_line else ''}"
        yield f"operator: {parting.name}{at} ({way}) is called by {left}, {other} by {right}"
    if len(parting.lanes) > 1:
        *most, last = map(str, parting.lanes)
        yield f"  Lanes {', '.join(most)} and {last} part in this step."


def _short(line: str) -> str:
    file, _, number = line.rpartition(":")
    return f"{Path(file).name}:{number}"
