"""The operators of one step in a file, for `verify --save ops.json --where 37` on one machine and `--against` on another.

Format `samebits-operators`, sealed as a file of bits is (`verify.saved_bits`): hashes of what each operator of rank 0 read and
wrote, and no values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samebits.verify.evidence import Evidence, Kind
from samebits.verify.repeat.operators import Operator
from samebits.verify.saved_bits import (
    FORMAT,
    UNREADABLE,
    SavedBits,
    bits_from,
    damaged,
    is_count,
    sealed,
    text_of,
    unsealed,
)

OPERATORS = "samebits-operators"


@dataclass(frozen=True)
class SavedOperators:
    """What was recorded, of which script, under which conditions."""

    script: str
    """The name of the script or module, without its folder."""
    args: tuple[str, ...]
    facts: Mapping[str, Any]
    steps: int
    """The step; the run ends behind it."""
    before: str
    """The hash of all bits before the step."""
    operators: Sequence[Operator]

    has_lanes = False
    """Only scripts without our calls have such files."""

    def encode(self) -> bytes:
        """The text of the file."""
        lines = [{**asdict(one), "line": _without_folder(one.line)} for one in self.operators]
        named = {"script": self.script, "args": list(self.args), "facts": dict(self.facts)}
        return sealed(OPERATORS, {**named, "step": self.steps, "before": self.before, "operators": lines})


Saved = SavedBits | SavedOperators


def _without_folder(line: str) -> str:
    return line.rpartition("/")[2]


def operators_from(body: Mapping[str, Any], path: str) -> SavedOperators:
    """The inverse of `SavedOperators.encode`, of what `unsealed` gave. Raises UsageError."""
    try:
        if not is_count(body["step"]) or not isinstance(body["facts"], dict):
            raise damaged(path)
        operators = [_operator(line) for line in body["operators"]]
        named = str(body["script"]), tuple(map(str, body["args"])), body["facts"]
        return SavedOperators(*named, body["step"], str(body["before"]), operators)
    except UNREADABLE:
        raise damaged(path) from None


def _operator(line: Mapping[str, Any]) -> Operator:
    shapes, inputs, outputs = (tuple(map(str, line[key])) for key in ("shapes", "inputs", "outputs"))
    at = str(line["line"]), bool(line["is_backward"])
    return Operator(int(line["number"]), str(line["name"]), *at, shapes, inputs, outputs)


def read_against(path: Path) -> Saved:
    """The file of --against, of either format.

    Raises:
        UsageError: when there is no such file, or it cannot be trusted.
    """
    body = unsealed(text_of(path), str(path), (FORMAT, OPERATORS))
    return (bits_from if body["format"] == FORMAT else operators_from)(body, str(path))


def bits_before(evidence: Evidence, step: int) -> str:
    """The hash of what rank 0 recorded before a step, with what the first one began with."""
    recorded = evidence.ranks[0].items()
    found = sorted((at.step, at.item, to) for at, to in recorded if at.step < step or at.kind is Kind.INITIAL)
    return hashlib.blake2b(repr(found).encode(), digest_size=16).hexdigest()
