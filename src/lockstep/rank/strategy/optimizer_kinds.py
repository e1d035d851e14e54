"""Which optimizers may be given part of the parameters, and how fine that part may be.

An optimizer is *element-wise* when the update of an element depends only on that element's gradient and state; then it
may be given chunks. One with statistics over a tensor is given whole parameters, as stages do with all. One that
couples parameters, or that is not known here, is refused unless the script says what it is; then zero1 gives it its own
parameters (`lending`). The tables are tested: `tests/unit/rank/strategy/test_optimizer_kinds.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import optim
from torch.optim import Optimizer

from lockstep.errors import UsageError


class UpdatesBy(StrEnum):
    """What an optimizer looks at to update something."""

    ELEMENT = "element"
    PARAMETER = "parameter"
    ITSELF = "itself"
    """At most a parameter, says the script; its code is not known here, so it gets the parameters themselves."""


KNOWN: dict[type[Optimizer], UpdatesBy] = {
    optim.SGD: UpdatesBy.ELEMENT,
    optim.Adam: UpdatesBy.ELEMENT,
    optim.AdamW: UpdatesBy.ELEMENT,
    optim.Adamax: UpdatesBy.ELEMENT,
    optim.NAdam: UpdatesBy.ELEMENT,
    optim.RAdam: UpdatesBy.ELEMENT,
    optim.Adagrad: UpdatesBy.ELEMENT,
    optim.Adadelta: UpdatesBy.ELEMENT,
    optim.RMSprop: UpdatesBy.ELEMENT,
    optim.Rprop: UpdatesBy.ELEMENT,
    optim.ASGD: UpdatesBy.ELEMENT,
    optim.Adafactor: UpdatesBy.PARAMETER,
    optim.SparseAdam: UpdatesBy.PARAMETER,
    **({optim.Muon: UpdatesBy.PARAMETER} if hasattr(optim, "Muon") else {}),
}

CUTTABLE = (torch.float32, torch.float64)
"""Parameters of other dtypes stay whole: torch's half-precision kernels round differently at the end of a thread's part
than in the middle, and where a part ends depends on the tensor's length (seen with 2 threads, bf16 and fp16)."""


def updates_by(optimizer: Optimizer, said: str | None, strategy: str = "zero1") -> UpdatesBy:
    """How `optimizer` may be shared out.

    Args:
        optimizer: any optimizer.
        said: what the script said about optimizers that are not known here.
        strategy: what messages call the strategy that shares out.

    Raises:
        UsageError: for an unknown one about which nothing was said, and for forms whose bits depend on the sharing.
    """
    for group in optimizer.param_groups:
        _refuse_form(optimizer, group)
    for known, kind in KNOWN.items():
        if _is_like(type(optimizer), known):
            return kind
    if said is None:
        raise UsageError(
            f"{strategy} does not know whether {type(optimizer).__name__} updates each element, or each parameter, "
            f"independently: each rank updates and sees only its part of the parameters.",
            'Call run.prepare(..., updates_by="element") or updates_by="parameter" (statistics over a tensor). '
            "Optimizers that combine parameters need --strategy ddp: LBFGS, Prodigy, D-Adaptation, SAM, a LAMB that "
            "clips by the norm of all gradients.",
        )
    return UpdatesBy.ITSELF


def _is_like(kind: type[Optimizer], known: type[Optimizer]) -> bool:
    """Whether `kind` is the known class, or inherits from it all that updates."""
    if not issubclass(kind, known):
        return False
    own: Sequence[type] = kind.__mro__[: kind.__mro__.index(known)]
    # torch wraps `step` of every class that is instantiated, so `vars` has one even if the class does not define it.
    return inspect.unwrap(kind.step) is inspect.unwrap(known.step) and not any(
        "_init_group" in vars(one) for one in own
    )


def _refuse_form(optimizer: Optimizer, group: dict[str, Any]) -> None:
    name = type(optimizer).__name__
    if group.get("differentiable"):
        raise UsageError(f"{name}(differentiable=True) needs the whole graph of an update.", "Use --strategy ddp.")
    half = any(parameter.dtype not in CUTTABLE for parameter in group["params"])
    if isinstance(optimizer, optim.SGD) and group.get("fused") and group.get("momentum") and half:
        raise UsageError(
            "SGD(fused=True) with momentum gives different bits each time for half-precision parameters.",
            "Use fused=False.",
        )
