"""Versions of Python, torch, NumPy and lockstep, whether they are new enough, and which backend is used when."""

from __future__ import annotations

from lockstep import torch_private, torch_versions
from lockstep.checkup.report import Row, note, ok, problem
from lockstep.checkup.torch_facts import TorchFacts
from lockstep.launch.import_failure import is_for_want_of_addresses

OLDEST_PYTHON = (3, 11)
TESTED_ONE = f"pip install torch=={torch_versions.TESTED[-1]}"


def version_rows(python: tuple[int, int, int], lockstep: str, facts: TorchFacts, most_addresses: int = -1) -> list[Row]:
    """A row for each version.

    Args:
        python: the interpreter's.
        lockstep: ours.
        facts: torch's.
        most_addresses: as for `addresses_row`.
    """
    return [
        _python(python),
        _torch(facts, _is_for_want_of_addresses(facts, most_addresses)),
        ok("NumPy", facts.numpy)
        if facts.numpy
        else note("NumPy", "not found", "pip install numpy, unless torch is missing too."),
        ok("lockstep", lockstep),
    ]


def names_row(facts: TorchFacts) -> Row:
    """Whether torch has the private names that lockstep uses."""
    if facts.error:
        return problem("torch's names", "unknown without torch", "See torch.")
    if facts.missing:
        return note("torch's names", f"missing: {', '.join(facts.missing)}", f"If they are needed: {TESTED_ONE}")
    return ok("torch's names", f"all {torch_private.count()} private names that lockstep uses are present")


def _python(version: tuple[int, int, int]) -> Row:
    text = ".".join(map(str, version))
    if version[:2] < OLDEST_PYTHON:
        return problem("Python", text, "lockstep needs 3.11 or newer.")
    return ok("Python", text)


def addresses_row(facts: TorchFacts, most_addresses: int) -> Row:
    """Whether a process may have enough addresses for torch.

    Args:
        facts: torch's.
        most_addresses: in bytes; negative: any number.
    """
    if most_addresses < 0:
        return ok("addresses", "no limit")
    text = f"{most_addresses >> 20} MiB per process"
    if _is_for_want_of_addresses(facts, most_addresses):
        return problem("addresses", f"{text}: torch cannot be imported with them", "ulimit -v unlimited")
    if facts.error:
        return note("addresses", text, "If a script runs out of memory: ulimit -v unlimited")
    return note("addresses", f"{text}: enough to import torch, but a script may need more", "ulimit -v unlimited")


def _is_for_want_of_addresses(facts: TorchFacts, most_addresses: int) -> bool:
    return most_addresses >= 0 and (facts.is_crashed or is_for_want_of_addresses(facts.error, most_addresses))


def _torch(facts: TorchFacts, has_too_few_addresses: bool) -> Row:
    if has_too_few_addresses:
        return problem("torch", f"cannot be imported: {facts.error}", "See addresses.")
    if facts.error:
        return problem("torch", f"cannot be imported: {facts.error}", "pip install torch, into this Python.")
    kind = facts.built_for or "a CPU build"
    text = f"{facts.version}, {kind}" + (f", kernels for {facts.cpu}" if facts.cpu else "")
    if torch_versions.is_too_old(facts.version):
        return problem("torch", text, f"lockstep needs {torch_versions.tested_range().split()[0]} or newer.")
    if torch_versions.is_untested(facts.version):
        return note(
            "torch",
            f"{text}; newer than any tested with lockstep ({torch_versions.tested_range()})",
            f"A tested one: {TESTED_ONE}. The rows below show what was tried here.",
        )
    if facts.tasks > 1:
        return note(
            "torch",
            f"{text}; importing it starts {facts.tasks - 1} threads",
            "Ranks start as new interpreters (--fresh), which takes seconds; find the import that starts threads.",
        )
    return ok("torch", text)


KNOWN = ("gloo", "nccl", "mpi", "ucc")


def backend_row(facts: TorchFacts) -> Row:
    """Which backends torch has and lacks, and which are used."""
    if facts.error:
        return problem("backends", "unknown without torch", "See torch.")
    if "gloo" not in facts.backends:
        return problem(
            "backends", "this torch has no gloo, so CPU ranks cannot meet",
            "Install a torch built with torch.distributed, such as the wheels of pytorch.org.",
        )  # fmt: skip
    has = [f"nccl {facts.nccl}" if name == "nccl" and facts.nccl else name for name in KNOWN if name in facts.backends]
    lacks = [name for name in KNOWN if name not in facts.backends]
    text = f"{', '.join(has)}; not {', '.join(lacks)}" if lacks else ", ".join(has)
    if facts.devices and "nccl" not in facts.backends:
        return note("backends", f"{text}; GPU ranks need nccl", "Install the CUDA wheel of torch.")
    between = "gloo" if facts.not_compiled or facts.misfit else "shared memory"
    used = f"nccl between GPU ranks, {between} between CPU ranks" if facts.devices else f"{between} is used"
    if facts.misfit:
        return note("backends", f"{text}. Here {used}. {facts.misfit}", TESTED_ONE)
    return ok("backends", f"{text}. Here {used}")


def compiled_row(facts: TorchFacts) -> Row:
    """Whether CPU ranks of one node share memory."""
    if facts.error:
        return problem("compiled part", "unknown without torch", "See torch.")
    if facts.not_compiled:
        what, _, fix = facts.not_compiled.partition("; ")
        return note("compiled part", f"{what}: CPU ranks use gloo, which is slower", fix or "Use Linux.")
    return ok("compiled part", f"loads, {facts.instructions}: CPU ranks of one node share memory")
