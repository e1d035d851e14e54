"""Models whose CUDA graphs were captured too early: a graph reads and writes memory at fixed addresses."""

from __future__ import annotations

from torch import nn

from lockstep.errors import UsageError

CAPTURED = "make_graphed_callables."
"""How the qualified name of the forward begins that torch.cuda.make_graphed_callables puts into a module."""


def refuse_captured(model: nn.Module) -> None:
    """Refuse a model with a captured part: `prepare` lays parameters out anew, and its graphs would read the old ones.

    Raises:
        UsageError: with the part's name.
    """
    for name, part in model.named_modules():
        if getattr(vars(part).get("forward"), "__qualname__", "").startswith(CAPTURED):
            raise UsageError(
                f"run.prepare got a model whose {name or 'forward'} was captured by torch.cuda.make_graphed_callables: its "
                f"graphs would go on reading parameters where they no longer are.",
                "Prepare the model first, and capture it then.",
            )
