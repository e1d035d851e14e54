"""Switch off what makes one cut of a batch differ from another by nature.

That is dropout, BatchNorm's batch statistics, and random numbers that the script draws for its samples. Only
`lockstep verify` does this, for its row `plain`: then the gradient over L lanes must be the gradient of the whole
batch up to rounding, unless the loss means something else. torch's functions are replaced in this process for good.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lockstep.machine.torch_private import if_imported
from lockstep.protocol.layout.stream_key import Domain
from lockstep.rank.init.streams import Streams
from lockstep.rank.recording.repeated_noise import RepeatedNoise
from lockstep.rank.run.position.region import LoopPosition

DROPOUTS = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")
_autocast_dtypes: set[str] = set()


def calm() -> None:
    """Make dropout the identity, let BatchNorm use its running statistics, compile nothing."""
    for name in DROPOUTS:
        setattr(F, name, _with(getattr(F, name), p=0.0, training=False))
    F.scaled_dot_product_attention = _with(F.scaled_dot_product_attention, dropout_p=0.0)
    F.batch_norm = _running_statistics(F.batch_norm)
    _watch_autocast()
    compile_nothing()  # a compiled graph draws its own random numbers


def compile_nothing() -> None:
    """Let `torch.compile` return the model as it is."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    if (settings := if_imported("compiler_settings")) is not None:
        settings.disable = True


def calm_module(model: nn.Module) -> None:
    """Switch off what functions cannot reach: the dropout inside recurrent layers."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.dropout = 0.0


def calm_random_numbers(position: LoopPosition, streams: Streams) -> None:
    """Give every lane the same streams, and every sample of a lane the same random numbers."""
    noise = RepeatedNoise(position)
    enter = streams.enter

    def enter_same(domain: Domain, *where: int | str) -> None:
        if domain is Domain.LANE:
            noise.restart()
            where = ("every lane",)
        enter(domain, *where)

    streams.enter = enter_same  # type: ignore[method-assign]
    streams.was_seeded = lambda: False  # type: ignore[method-assign]  # the noise seeds, and not the script
    noise.__enter__()  # type: ignore[no-untyped-call]


def autocast_dtypes() -> list[str]:
    """The dtypes in which autocast has computed since `calm`."""
    return sorted(_autocast_dtypes)


def _watch_autocast() -> None:
    enter = torch.autocast.__enter__

    def watched(context: torch.autocast) -> Any:
        if context._enabled:  # noqa: SLF001 - there is no public way to ask
            _autocast_dtypes.add(str(context.fast_dtype).removeprefix("torch."))
        return enter(context)  # type: ignore[no-untyped-call]

    torch.autocast.__enter__ = watched  # type: ignore[method-assign]


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
        given = signature.bind(*args, **kwargs)
        if given.arguments.get("running_mean") is None:
            features = given.arguments["input"].size(1)
            given.arguments["running_mean"] = given.arguments["input"].new_zeros(features)
            given.arguments["running_var"] = given.arguments["input"].new_ones(features)
        given.arguments["training"] = False
        return batch_norm(*given.args, **given.kwargs)

    return running
