"""What an optimizer held before the model was cut: state of Adagrad, or of a file, where the parameters were then."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lockstep.torch_private import pytree


def bring_state(optimizer: Optimizer) -> None:
    """Move each parameter's state to its device; `step` stays where torch put it, and other ranks' parts stay behind."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if not state or parameter.is_meta:
                continue

            def put(value: Any, home: Any = parameter.device) -> Any:
                return value.to(home) if isinstance(value, Tensor) else value

            for key, value in state.items():
                if key != "step" or (isinstance(value, Tensor) and value.device.type != "cpu"):
                    state[key] = pytree.tree_map(put, value)
