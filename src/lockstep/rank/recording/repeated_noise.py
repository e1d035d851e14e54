"""Random numbers that are the same for every sample of a batch, so that they do not depend on how the batch is cut.

For the row `plain` of `lockstep verify`: the noise of a diffusion model or a VAE would differ between one lane and
four, and hide what the row looks for. Within a lane, the n-th draw always comes from the same stream, with the first
dimension (the samples) drawn once and repeated; a permutation leaves everything in its position.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.machine.torch_private import TorchDispatchMode
from lockstep.protocol.layout.stream_key import Domain, stream_key
from lockstep.rank.init.generators import generators, states
from lockstep.rank.run.position.region import LoopPosition, Region

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
        if kwargs.get("generator") is not None:
            kwargs = kwargs | {"generator": None}
        return self._draw(func, args, kwargs)

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
        drew_nothing, result = _without_drawing(func, args, kwargs)
        return result if drew_nothing else self._by_samples(func, args, kwargs)

    def _by_samples(self, func: Any, args: Any, kwargs: Any) -> Any:
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
    changed = [(value, value.clone()) for value in _written(func, args, kwargs)]
    before = states()
    result = func(*args, **kwargs)
    if all(map(torch.equal, before, states())):
        return True, result
    for value, copy in changed:
        value.copy_(copy)
    return False, None


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors among the arguments that the operation writes to."""
    given = [*zip(func._schema.arguments, args, strict=False)]  # noqa: SLF001 - the only way to ask
    given += [(argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs]  # noqa: SLF001
    return [value for argument, value in given if argument.is_write and isinstance(value, Tensor)]


def _row(args: Any, kwargs: Any, count: int, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of sample `number` of `count`; in-place operations write to it."""

    def cut(value: Any) -> Any:
        per_sample = isinstance(value, Tensor) and value.dim() and len(value) == count
        return value[number : number + 1] if per_sample else value

    return tuple(map(cut, args)), {name: cut(value) for name, value in kwargs.items()}
