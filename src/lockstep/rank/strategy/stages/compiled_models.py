"""Models that torch.compile runs, whose layers nobody sees being called."""

from __future__ import annotations

import sys

import torch
from torch import nn

from lockstep.errors import UsageError
from lockstep.machine.torch_private import COMPILER


def refuse_compiled(model: nn.Module, strategy: str) -> None:
    """Refuse a model that is compiled, or has a compiled layer.

    Args:
        model: looked through with all its layers.
        strategy: its name, which follows the model's forward.

    Raises:
        UsageError: if one of them is compiled.
    """
    for module in model.modules():
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:  # noqa: SLF001
            raise UsageError(
                f"{strategy} follows the model's forward, which a compiled {type(module).__name__} hides.",
                "Prepare it without torch.compile, or use --strategy ddp.",
            )


def refuse_being_compiled(module: nn.Module) -> None:
    """Refuse to go into a graph of torch.compile: call it first in what a strategy runs for a method of `module`.

    Raises:
        UsageError: when the compiler comes here.
    """
    if not torch.compiler.is_compiling():
        return
    what = f"torch.compile hides the layers of a prepared {type(module).__name__}, which the strategy runs."
    fix = "Call it without torch.compile, or use --strategy ddp."
    # The compiler leaves out what raises while it traces, and goes on without it. With fullgraph=True it raises the words.
    sys.modules[COMPILER].graph_break(msg=f"{what} {fix}")
    raise UsageError(what, fix)
