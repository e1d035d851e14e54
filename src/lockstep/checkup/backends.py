"""The back ends of torch.distributed: which this torch has, and which one is used when."""

from __future__ import annotations

from lockstep.checkup.row import Row, note, ok, problem
from lockstep.checkup.torch_facts import TorchFacts

KNOWN = ("gloo", "nccl", "mpi", "ucc")


def backend_row(facts: TorchFacts) -> Row:
    """Has and has not, and the choice."""
    if facts.error:
        return problem("back ends", "unknown without torch", "See torch.")
    if "gloo" not in facts.backends:
        return problem(
            "back ends", "this torch has no gloo, so CPU ranks cannot meet",
            "Install a torch that was built with torch.distributed; the wheels of pytorch.org are.",
        )  # fmt: skip
    has = [f"nccl {facts.nccl}" if name == "nccl" and facts.nccl else name for name in KNOWN if name in facts.backends]
    lacks = [name for name in KNOWN if name not in facts.backends]
    text = f"{', '.join(has)}; not {', '.join(lacks)}" if lacks else ", ".join(has)
    if facts.devices and "nccl" not in facts.backends:
        return note("back ends", f"{text}; GPU ranks need nccl", "Install the CUDA wheel of torch.")
    used = "nccl between GPU ranks, gloo between CPU ranks" if facts.devices else "gloo is used"
    return ok("back ends", f"{text}. Here {used}")
