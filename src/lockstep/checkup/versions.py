"""Python, torch, NumPy and lockstep: which, and whether they are new enough."""

from __future__ import annotations

from lockstep import torch_private, torch_versions
from lockstep.checkup.row import Row, note, ok, problem
from lockstep.checkup.torch_facts import TorchFacts

OLDEST_PYTHON = (3, 11)
TESTED_ONE = f"pip install torch=={torch_versions.TESTED[-1]}"


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


def names_row(facts: TorchFacts) -> Row:
    """Whether torch has what lockstep uses of it without a promise."""
    if facts.error:
        return problem("torch's names", "unknown without torch", "See torch.")
    if facts.missing:
        return note("torch's names", f"missing: {', '.join(facts.missing)}", f"Where that is needed: {TESTED_ONE}")
    return ok("torch's names", f"all {torch_private.count()} private ones that lockstep uses are there")


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
    if torch_versions.is_too_old(facts.version):
        return problem("torch", text, f"lockstep needs {torch_versions.tested_range().split()[0]} or newer.")
    if torch_versions.is_untested(facts.version):
        return note(
            "torch",
            f"{text}; newer than all that lockstep was tested with ({torch_versions.tested_range()})",
            f"A tested one: {TESTED_ONE}. What was tried here stands below.",
        )
    if facts.tasks > 1:
        return note(
            "torch",
            f"{text}; importing it starts {facts.tasks - 1} threads",
            "Ranks start as new interpreters (--fresh), seconds later; find the import that starts threads.",
        )
    return ok("torch", text)
