"""How a program did under a launcher, what its numbers say, and the table of all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCE = 1e-3
"""Of numbers under two launchers, relative: backends add in different orders."""
MARK = "peer "


@dataclass(frozen=True)
class Outcome:
    """Of one program under one launcher."""

    seconds: float
    trouble: str = ""
    """The last line of what went wrong; empty when it went well."""
    numbers: Any = None
    """What rank 0 printed, for comparison."""

    def word(self, reference: Outcome) -> str:
        """`ok`, or why not in a word; compared with the one under torchrun."""
        if self.trouble:
            return "FAILED"
        if not reference.trouble and not same(self.numbers, reference.numbers):
            return "DIFFERS"
        return "ok"


def same(one: Any, other: Any) -> bool:
    """Whether two trees of numbers have the same shape and nearly the same values."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return type(one) is type(other) and one == other


def read(code: int, out: str, err: str, seconds: float, tells: bool) -> Outcome:
    """The outcome of a process from what it printed.

    Args:
        code: its exit code.
        out: standard output; numbers are on a line after `peer`.
        err: standard error.
        seconds: how long it took.
        tells: whether there must be numbers.
    """
    if code != 0:
        return Outcome(seconds, trouble=reason(err) or f"exit code {code}")
    told = [line.partition(MARK)[2] for line in out.splitlines() if line.startswith(MARK)]
    if tells and len(told) != 1:
        return Outcome(seconds, trouble=f"it ended well, but printed {len(told)} results instead of 1")
    return Outcome(seconds, numbers=json.loads(told[0]) if told else None)


def reason(err: str) -> str:
    """The most telling line of an error output: the last with an exception (not torchrun's own), else the last."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"Error\b|Exception\b|error: ", line) and "ChildFailed" not in line]
    return (named or lines or [""])[-1][:300]


def table(rows: Mapping[str, Mapping[str, Outcome]], launchers: Sequence[str]) -> str:
    """A row for each program, a column for each launcher (the first is the reference), counts, and what went wrong."""
    width = max(map(len, rows)) + 2
    lines = [f"{'':<{width}}" + "".join(f"{name:<32}" for name in launchers)]
    notes, counts = [], dict.fromkeys(launchers, 0)
    for title, outcomes in rows.items():
        cells = []
        for name in launchers:
            outcome = outcomes[name]
            word = outcome.word(outcomes[launchers[0]])
            counts[name] += word == "ok"
            cells.append(f"{word + f' {outcome.seconds:.1f} s':<32}")
            if word != "ok":
                notes.append(
                    f"{title}, {name}: {outcome.trouble or f'{outcome.numbers} is not {outcomes[launchers[0]].numbers}'}"
                )
        lines.append(f"{title:<{width}}" + "".join(cells).rstrip())
    lines.append(f"{'':<{width}}" + "".join(f"{f'{counts[name]} of {len(rows)}':<32}" for name in launchers).rstrip())
    return "\n".join([*lines, *notes])


def all_good(rows: Mapping[str, Mapping[str, Outcome]], reference: str) -> bool:
    """Whether everything went well everywhere."""
    return all(each.word(outcomes[reference]) == "ok" for outcomes in rows.values() for each in outcomes.values())
