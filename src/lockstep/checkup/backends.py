"""The backends of torch.distributed: which this torch has, and which one is used when; and our own."""

from __future__ import annotations

from lockstep.checkup.row import Row, note, ok, problem
from lockstep.checkup.torch_facts import TorchFacts
from lockstep.checkup.versions import TESTED_ONE

KNOWN = ("gloo", "nccl", "mpi", "ucc")


def backend_row(facts: TorchFacts) -> Row:
    """Has and has not, and the choice."""
    if facts.error:
        return problem("backends", "unknown without torch", "See torch.")
    if "gloo" not in facts.backends:
        return problem(
            "backends", "this torch has no gloo, so CPU ranks cannot meet",
            "Install a torch that was built with torch.distributed; the wheels of pytorch.org are.",
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
