"""Random numbers that are the same for every sample of a batch, so that they do not depend on how the batch is cut.

For the row `plain` of `lockstep verify`: the noise of a diffusion model or a VAE would differ between one lane and
four, and hide what the row looks for. Within a lane, the n-th draw always comes from the same stream, with the first
dimension (the samples) drawn once and repeated; a permutation leaves everything in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.layout.stream_key import Domain, stream_key
from lockstep.run.place import Place, Region
from lockstep.torch_private import TorchDispatchMode

_SEEDED = torch.Tag.nondeterministic_seeded


class RepeatedNoise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, every random operation of torch inside a lane goes through it."""

    def __init__(self, place: Place) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._place = place
        self._draws = 0

    def restart(self) -> None:
        """A lane begins: its first draw is the first again."""
        self._draws = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._place.region is not Region.LANE or _SEEDED not in func.tags:
            return func(*args, **kwargs)
        self._draws += 1
        if kwargs.get("generator") is not None:
            kwargs = kwargs | {"generator": None}
        return self._draw(func, args, kwargs)

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
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
        rows = [self._once(func, _row(args, number), kwargs, None) for number in range(len(args[0]))]
        if name.endswith("_") or not rows:
            return args[0]
        return torch.cat(rows) if isinstance(rows[0], Tensor) else tuple(map(torch.cat, zip(*rows, strict=True)))

    def _once(self, func: Any, args: Any, kwargs: Any, size: Any) -> Any:
        key = stream_key(0, Domain.LANE, self._draws)
        torch.default_generator.manual_seed(key)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for generator in torch.cuda.default_generators:
                generator.manual_seed(key)
        drawn = func(*args, **kwargs)
        return drawn if size is None else drawn.expand(size).contiguous()


def _row(args: Any, number: int) -> tuple[Any, ...]:
    """The arguments of one sample; in-place operations write to it."""
    count = len(args[0])
    return tuple(
        value[number : number + 1] if isinstance(value, Tensor) and value.dim() and len(value) == count else value
        for value in args
    )
