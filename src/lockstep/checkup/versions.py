"""Python, torch, NumPy and lockstep: which, and whether they are new enough."""

from __future__ import annotations

import re

from lockstep.checkup.row import Row, note, ok, problem
from lockstep.checkup.torch_facts import TorchFacts

OLDEST_TORCH = (2, 11)
OLDEST_PYTHON = (3, 11)


def version_rows(python: tuple[int, int, int], lockstep: str, facts: TorchFacts) -> list[Row]:
    """A row for each."""
    return [
        _python(python),
        _torch(facts),
        ok("NumPy", facts.numpy)
        if facts.numpy
        else note("NumPy", "not found", "pip install numpy, unless torch is missing too."),
        ok("lockstep", lockstep),
    ]


def _python(version: tuple[int, int, int]) -> Row:
    text = ".".join(map(str, version))
    if version[:2] < OLDEST_PYTHON:
        return problem("Python", text, "lockstep needs 3.11 or newer.")
    return ok("Python", text)


def _torch(facts: TorchFacts) -> Row:
    if facts.error:
        return problem("torch", f"cannot be imported: {facts.error}", "pip install torch, into this Python.")
    kind = facts.built_for or "a CPU build"
    text = f"{facts.version}, {kind}" + (f", kernels for {facts.cpu}" if facts.cpu else "")
    numbers = tuple(int(part) for part in re.findall(r"\d+", facts.version)[:2])
    if numbers < OLDEST_TORCH:
        return problem("torch", text, f"lockstep needs {'.'.join(map(str, OLDEST_TORCH))} or newer.")
    if facts.tasks > 1:
        return note(
            "torch",
            f"{text}; importing it starts {facts.tasks - 1} threads",
            "Ranks start as new interpreters (--fresh), seconds later; find the import that starts threads.",
        )
    return ok("torch", text)
