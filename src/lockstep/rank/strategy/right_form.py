"""The training loops that messages show, and the error for a script that trains in another place."""

import sys
import threading

from lockstep.errors import UsageError
from lockstep.rank.caller import where

RIGHT_FORM = (
    "for step in run.steps(loader):\n    for batch in step:\n        run.backward(loss_of(batch))\n"
    "    optimizer.step()\n    optimizer.zero_grad()"
)

ORDERED_FORM = (
    "for step in run.steps(loader):\n    step.backward(lambda batch: loss_of(model, batch))  # calls the model once\n"
    "    optimizer.step()\n    optimizer.zero_grad()"
)
"""For strategies that do the lanes' forwards and backwards in their own order."""

INNER_FORM = (
    "A module that trains in forward does so with copies, whose gradients torch.autograd.grad returns:\n"
    "fast = {name: one - lr * gradient for (name, one), gradient in zip(inner.named_parameters(), gradients)}\n"
    "torch.func.functional_call(inner, fast, x)"
)


def misplaced(problem: str, fix: str) -> UsageError:
    """The error for a script that trains where it must not, with its line; where its forward does, with what that may do."""
    if threading.current_thread() is not threading.main_thread():
        return UsageError(f"{problem}.", fix)  # the thread of a GPU's backward has no line of the script
    return UsageError(f"{problem} ({where()}).", INNER_FORM if _is_in_forward() else fix)


def _is_in_forward() -> bool:
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() costs milliseconds
    while frame.f_back is not None and frame.f_code.co_name != "forward":
        frame = frame.f_back
    return frame.f_code.co_name == "forward"
