"""A second kind of machine on this one: all ranks on one CPU, or on the threads of one core where it has several."""

from __future__ import annotations

import os
from dataclasses import dataclass

from benchmarks.siblings import siblings

ONE_CPU, SIBLINGS = KINDS = ("one-cpu", "siblings")


@dataclass(frozen=True)
class Pinned:
    """Where the ranks may run; everywhere when `cpus` is empty."""

    cpus: frozenset[int] = frozenset()
    text: str = ""
    problem: str = ""
    kind: str = ""
    """As on the command line; empty for everywhere."""


def cpus_for(kind: str | None) -> Pinned:
    """The CPUs of a kind; or why there are none, in one sentence."""
    if kind is None:
        return Pinned()
    allowed = frozenset(os.sched_getaffinity(0))
    if kind == ONE_CPU:
        return Pinned(frozenset({min(allowed)}), f", all ranks on CPU {min(allowed)}", kind=kind)
    for cpu in sorted(allowed):
        together = siblings(cpu) & allowed
        if len(together) > 1:
            told = ", ".join(map(str, sorted(together)))
            return Pinned(together, f", all ranks on CPUs {told}, threads of one core", kind=kind)
    return Pinned(problem=f"No core here has two threads that this process may use. Take --pinned {ONE_CPU}.")
