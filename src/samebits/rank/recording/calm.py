"""Switch off what makes one cut of a batch differ from another by nature.

That is dropout, BatchNorm's batch statistics, and random numbers that the script draws for its samples. Only
`samebits verify` does this, for its row `plain`: then the gradient over L lanes must be the gradient of the whole
batch up to rounding, unless the loss means something else. torch's functions are replaced in this process for good.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samebits.machine.torch_private import TorchDispatchMode, if_imported
from samebits.protocol.layout.stream_key import Domain, stream_key
from samebits.rank.init.random_streams import Streams, generators, states
from samebits.rank.position.moment import LoopPosition, Region
from samebits.rank.strategy.stages.cutting.watch import written_by

_SEEDED = torch.Tag.nondeterministic_seeded


class RepeatedNoise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that every random operation of torch inside a lane goes through."""

    def __init__(self, position: LoopPosition) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._position = position
        self._draws = 0

    def restart(self) -> None:
        """Begin a lane: its first draw is the first again."""
        self._draws = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._position.region is not Region.LANE or _SEEDED not in func.tags:
            return func(*args, **kwargs)
        self._draws += 1
        # A generator of the script's own would not be where `_once` puts the global ones.
        if kwargs.get("generator") is not None:
            kwargs = kwargs | {"generator": None}
        return self._draw(func, args, kwargs)

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
        drew_nothing, result = _without_drawing(func, args, kwargs)
        return result if drew_nothing else self._by_samples(func, args, kwargs)

    def _by_samples(self, func: Any, args: Any, kwargs: Any) -> Any:
        # Lanes differ in their number of samples: each sample gets the numbers that a single one would get.
        name = func.overloadpacket.__name__
        if name == "randperm":
            return torch.arange(args[0], device=kwargs.get("device"))
        if name.endswith("_like"):
            return self._once(func, (args[0][:1], *args[1:]), kwargs, args[0].shape)
        sizes = [number for number, value in enumerate(args) if isinstance(value, (list, tuple))]
        if sizes:
            size = list(args[sizes[0]])
            once = (*args[: sizes[0]], [1, *size[1:]] if size else size, *args[sizes[0] + 1 :])
            return self._once(func, once, kwargs, size)
        if not args or not isinstance(args[0], Tensor) or args[0].dim() == 0:
            return self._once(func, args, kwargs, None)
        count = len(args[0])
        rows = [self._once(func, *_row(args, kwargs, count, number), None) for number in range(count)]
        if name.endswith("_") or not rows:
            return args[0]
        return torch.cat(rows) if isinstance(rows[0], Tensor) else tuple(map(torch.cat, zip(*rows, strict=True)))

    def _once(self, func: Any, args: Any, kwargs: Any, size: Any) -> Any:
        key = stream_key(0, Domain.LANE, self._draws)
        for generator in generators():
            generator.manual_seed(key)
        drawn = func(*args, **kwargs)
        return drawn if size is None else drawn.expand(size).contiguous()


def _without_drawing(func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    """Call once; return whether that drew no random number, and the result. If it drew, `args` are as they were.

    Attention without dropout and the like can draw, but do not; their arguments need not be cut into samples then,
    which only a few of them would allow (a mask may have the same sizes as the batch and mean something else).
    """
    changed = [(value, value.clone()) for value in written_by(func, args, kwargs)]
    before = states()
    result = func(*args, **kwargs)
    if all(map(torch.equal, before, states())):
        return True, result
    for value, copy in changed:
        value.copy_(copy)
    return False, None


def _row(args: Any, kwargs: Any, count: int, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of sample `number` of `count`; in-place operations write to it."""

    def cut(value: Any) -> Any:
        per_sample = isinstance(value, Tensor) and value.dim() and len(value) == count
        return value[number : number + 1] if per_sample else value

    return tuple(map(cut, args)), {name: cut(value) for name, value in kwargs.items()}


DROPOUTS = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")
autocast_dtypes: set[str] = set()


def calm() -> None:
    """Make dropout the identity, let BatchNorm use its running statistics, compile nothing."""
    for name in DROPOUTS:
        setattr(F, name, _with(getattr(F, name), p=0.0, training=False))
    F.scaled_dot_product_attention = _with(F.scaled_dot_product_attention, dropout_p=0.0)
    F.batch_norm = _running_statistics(F.batch_norm)
    _watch_autocast()
    # A compiled graph draws its own random numbers.
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


def _watch_autocast() -> None:
    enter = torch.autocast.__enter__

    def watched(context: torch.autocast) -> Any:
        if context._enabled:  # noqa: SLF001 - there is no public way to ask
            autocast_dtypes.add(str(context.fast_dtype).removeprefix("torch."))
        return enter(context)  # type: ignore[no-untyped-call]

    torch.autocast.__enter__ = watched  # type: ignore[method-assign]


def _with(function: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:
        # A builtin: scaled_dot_product_attention.
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
