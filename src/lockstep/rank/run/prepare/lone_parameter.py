"""A parameter that belongs to no module: a temperature, class centres, a tensor that is optimised itself."""

from __future__ import annotations

from torch import Tensor, nn

from lockstep.errors import UsageError


class LoneParameter(nn.Module):
    """The module that strategies, states and `verify` see in the parameter's place.

    Args:
        tensor: the script's own object, a leaf that requires a gradient.

    Raises:
        UsageError: when it is not one.
    """

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        if not tensor.is_leaf or not tensor.requires_grad:
            why = "was computed from others" if not tensor.is_leaf else "does not require grad"
            raise UsageError(
                f"run.prepare got a tensor of shape {tuple(tensor.shape)} that {why}, so no optimizer can train it.",
                "Pass nn.Parameter(...), or leave it out: constants and batches need no preparation.",
            )
        self._parameters["value"] = tensor  # type: ignore[assignment]  # torch's own registration wants nn.Parameter
