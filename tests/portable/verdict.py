"""What two runs of the checks say together: which kernels are covered, and which of those in a check that differs is to blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Results = dict[str, list[list[Any]]]
"""By case: of each check the hash of its inputs, of its results (all bits, then with every NaN alike), and what ran."""
Kinds = dict[str, list[tuple[str, list[str]]]]

BAD = ("differs", "fails in one")

SAME_NUMBERS = (
    *(
        f"{key} {name}"
        for key in ("CPU", "SparseCPU", "NestedTensorCPU")
        for name in ("alias", "detach", "set", "_pin_memory")
    ),
    *("CPU from_file", "SparseCPU resize_as_sparse"),
    *(f"NestedTensorCPU {name}" for name in ("view", "squeeze", "narrow", "is_same_size", "is_pinned")),
)
"""Covered without a check: they name, move or read memory. The first three of each line cannot be recorded."""


def compare(one: Results, other: Results) -> Kinds:
    """Checks by what became of them: equal, differs, differs in NaN, inputs differ, fails in both, fails in one, missing."""
    found: Kinds = {}
    for name, checks in one.items():
        for index, (given, result, ran) in enumerate(checks):
            theirs = other.get(name, [])
            kind = "missing" if len(theirs) <= index else _kind((given, result), theirs[index][:2])
            found.setdefault(kind, []).append((f"{name} #{index}", ran))
    return found


def _kind(mine: Sequence[str], theirs: Sequence[str]) -> str:
    failed = [":" in result for _, result in (mine, theirs)]
    if all(failed):
        return "fails in both"
    if any(failed):
        return "fails in one"
    if mine[0] != theirs[0]:
        return "inputs differ"
    if mine[1] == theirs[1]:
        return "equal"
    return "differs in NaN" if mine[1].split()[-1] == theirs[1].split()[-1] else "differs"


@dataclass(frozen=True)
class Verdict:
    """What is covered, and what was to blame where checks differed."""

    covered: list[str]
    blamed: dict[str, list[str]]


def verdict(native: Results, others: Iterable[Results]) -> Verdict:
    """A kernel is covered that ran in an equal check and is not to blame for one that differed.

    All that ran in a check that differs are to blame.
    """
    others = list(others)
    bad: dict[str, list[str]] = {}
    equal: Counter[str] = Counter()
    for other in others:
        kinds = compare(native, other)
        for kind in BAD:
            bad.update(dict(kinds.get(kind, [])))
        equal.update(name for name, _ in kinds.get("equal", []))
    ran = {word for name, words in _checks(native) if equal[name] and name not in bad for word in words}
    blamed: dict[str, list[str]] = {}
    for check, words in bad.items():
        for word in words:
            blamed.setdefault(word, []).append(check)
    return Verdict(sorted({*ran, *SAME_NUMBERS} - {*blamed}), blamed)


def _checks(results: Results) -> Iterator[tuple[str, list[str]]]:
    for name, checks in results.items():
        for index, (_, _, words) in enumerate(checks):
            yield f"{name} #{index}", words
