"""Switching off what makes one cut of a batch differ from another by nature: dropout, and BatchNorm's batch statistics.

Only `lockstep verify` does this, for its row `plain`: then the gradient over L lanes must be the gradient of the whole
batch up to rounding, unless the loss means something else. torch's functions are replaced in this process for good.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

DROPOUTS = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")


def calm() -> None:
    """Make dropout the identity, and let BatchNorm use its running statistics."""
    for name in DROPOUTS:
        setattr(F, name, _with(getattr(F, name), p=0.0, training=False))
    F.scaled_dot_product_attention = _with(F.scaled_dot_product_attention, dropout_p=0.0)
    F.batch_norm = _running_statistics(F.batch_norm)


def calm_module(model: nn.Module) -> None:
    """What cannot be reached through functions: the dropout inside recurrent layers."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.dropout = 0.0


def _with(function: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:  # a builtin: scaled_dot_product_attention
        names = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]

    def fixed_function(*args: Any, **kwargs: Any) -> Any:
        kwargs |= dict(zip(names, args, strict=False))
        return function(**(kwargs | fixed))

    return fixed_function


def _running_statistics(batch_norm: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(batch_norm)

    def running(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get("running_mean") is not None:
            bound.arguments["training"] = False
        return batch_norm(*bound.args, **bound.kwargs)

    return running
