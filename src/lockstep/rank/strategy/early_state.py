"""What an optimizer holds before its parameters move: Adagrad makes its state at once, and scripts load theirs early.

They move to the rank's device in `prepare`, and to those of their stages when a model is cut, so this state moves too.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lockstep.machine.torch_private import pytree


def follow_parameters(optimizer: Optimizer) -> None:
    """Move the state to where the parameters are now; call it before a strategy takes the optimizer, and after it has cut."""
    if type(optimizer.state) not in (dict, defaultdict):  # spread by an earlier run: the strategy says so
        return
    for group in optimizer.param_groups:
        counts_there = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            if parameter in optimizer.state and parameter.device.type not in {"cpu", "meta"}:  # meta: another rank's
                optimizer.state[parameter] = moved(
                    optimizer.state[parameter], parameter.device, counts_there=counts_there
                )


def moved(state: dict[str, Any], device: torch.device, *, counts_there: bool) -> dict[str, Any]:
    """One parameter's state with its tensors on `device`, as `Optimizer.load_state_dict` would put them.

    Args:
        state: of any form: LBFGS holds lists.
        device: the parameter's.
        counts_there: whether kernels count the steps there (`fused`, `capturable`); else `step` stays on the CPU.
    """

    def put(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else value

    return {
        key: value if key == "step" and not counts_there else pytree.tree_map(put, value)
        for key, value in state.items()
    }
