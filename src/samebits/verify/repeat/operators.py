"""The first operator at which two sides part: of what `witness.operators` wrote on each, one line for each operator of a step.

Pure functions over these lines. An operator whose inputs are equal and whose results are not is the answer. Where inputs differ
that no earlier operator made, they came from outside torch: data, a number from Python, random numbers. Where the two
sequences of operators part, that place is the answer.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any

from samebits.verify.evidence import is_hash, readable

IGNORED = ("profiler.",)
"""Marks of torch's own, which compute nothing."""


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
    name: str
    line: str
    is_backward: bool
    shapes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Parting:
    """Where two sides part."""

    why: Why
    step: int
    number: int
    """The operator's place among those of the step, from 0 on."""
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


def read_operators(path: Path) -> list[Operator]:
    """What one process wrote; empty where it wrote nothing."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Operator(
            number, line["name"], line["line"], line["backward"],
            tuple(line["shapes"]), tuple(line["in"]), tuple(line["out"]),
        )
        for number, line in enumerate(lines)
        if not line["name"].startswith(IGNORED)
    ]  # fmt: skip


def first_parting(ours: Sequence[Operator], theirs: Sequence[Operator], step: int) -> Parting | None:
    """Where they part; None if both did the same with the same."""
    for left, right in zip_longest(ours, theirs):
        if left is None or right is None or left.name != right.name:
            return _parting(Why.SEQUENCE, step, left, right)
        if left.inputs != right.inputs:
            why, values = _why_inputs(left.inputs, right.inputs)
            return replace(_parting(why, step, left, right), values=values)
        if left.outputs != right.outputs:
            return _parting(Why.OPERATOR, step, left, right)
    return None


def _why_inputs(ours: Sequence[str], theirs: Sequence[str]) -> tuple[Why, tuple[str, str] | None]:
    """What kind of inputs differ; of arguments the first pair, readable."""
    pairs = [pair for pair in zip_longest(ours, theirs, fillvalue="nothing") if pair[0] != pair[1]]
    if all(one.startswith("generator ") for one, _ in pairs):
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
