"""Which optimizers are shared out without anybody asking: those where no script can tell, but by a clock."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lockstep.errors import UsageError
from lockstep.strategy.optimizer_kinds import UpdatesBy, updates_by
from lockstep.torch_private import storage_uses


def suits(optimizer: Optimizer) -> bool:
    """Whether its update may be divided: torch's own and element by element, with a state that nobody else holds."""
    if not _has_usual_step(optimizer) or lists_twice(optimizer) or is_held(optimizer):
        return False
    try:
        return updates_by(optimizer, None) is UpdatesBy.ELEMENT
    except UsageError:
        return False


def lists_twice(optimizer: Optimizer) -> bool:
    """Whether a parameter is in its groups twice; then it is updated twice."""
    listed = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    return len(set(listed)) < len(listed)


def _has_usual_step(optimizer: Optimizer) -> bool:
    """Whether `step` is the class's own, or what torch's learning rate schedulers make of that: they note that it was called."""
    step = vars(optimizer).get("step")
    return step is None or (
        getattr(step, "__wrapped__", None) is type(optimizer).step and hasattr(step, "_wrapped_by_lr_sched")
    )


def is_scaled(optimizer: Optimizer) -> bool:
    """Whether a GradScaler of the script lets the engine itself divide the gradients, of which each rank would see a part."""
    return getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None


def is_held(optimizer: Optimizer) -> bool:
    """Whether something besides the optimizer refers to its state, as after `load_state_dict` with what is still there.

    An update writes to those tensors, and a script may read them later. If it is divided, it writes to others.
    """
    return any(mine > usual for mine, usual in zip(_uses(optimizer), _USUAL, strict=True))


def _uses(owner: Any) -> tuple[int, int, int, int]:
    """The most references to the state, to a parameter's entry, to a tensor, and to the memory of one."""
    state: Mapping[Any, Any] = owner.state
    entries = tensors = memory = 0
    for key in [*state]:
        entry = state[key]
        entries = max(entries, sys.getrefcount(entry))
        for name in [*entry] if isinstance(entry, dict) else ():
            value = entry[name]
            if isinstance(value, Tensor):
                tensors = max(tensors, sys.getrefcount(value))
                memory = max(memory, storage_uses(value.untyped_storage()._cdata))  # noqa: SLF001
    return sys.getrefcount(state), entries, tensors, memory


_USUAL = (0, 0, 0, 0)
_USUAL = _uses(SimpleNamespace(state=defaultdict(dict, {0: {"exp_avg": torch.zeros(1, device="cpu")}})))
"""What is counted where there is nobody else."""
