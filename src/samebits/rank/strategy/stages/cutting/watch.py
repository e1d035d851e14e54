"""Every operation of a forward, as it happens: what depends on parameters, how long it is needed, and what it costs.

Watching changes nothing: only the clock repeats an operation, on the same inputs, and only if it is known to be pure.
"""

from __future__ import annotations

import gc
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from samebits.machine.torch_private import TorchDispatchMode, cast, pytree

REPEATS = 2
"""The number of extra runs."""
WORTH_REPEATING_S = 20e-6

_PRODUCTS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "convolution_backward",
    "embedding",
    "embedding_dense_backward",
)
_NORMS = ("native_layer_norm", "native_layer_norm_backward", "native_batch_norm_backward")
_POOLS = ("max_pool2d_with_indices", "max_pool2d_with_indices_backward")
_SOFTMAX = ("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data")
_OTHERS = ("_scaled_dot_product_flash_attention_for_cpu_backward", "clone", "cat")
_PURE = frozenset(getattr(torch.ops.aten, name).default for name in (*_PRODUCTS, *_NORMS, *_POOLS, *_SOFTMAX, *_OTHERS))
"""Operations that only read their inputs, make new outputs, and choose kernels. Schemas do not show it: that of
`native_batch_norm` does not mention the statistics that it writes."""


class OperationClock:
    """A clock that runs operations and notes how long they took, each at a position.

    Args:
        device: where the operations run; a GPU is synchronized around each of them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._noted: list[tuple[int, Any]] = []
        """Position and kind of each operation."""
        self._first: dict[Any, float] = {}
        """Of each kind, the seconds of its first run, or of one again on the same inputs."""
        self._later: dict[Any, float] = {}
        """Of each kind that came several times, the least seconds since the first."""

    def run(self, position: int, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with _uncollected():
            began = self._now()
            result = func(*args, **kwargs)
            seconds = self._now() - began
        # A first run pays for caches, threads and a kernel's choice; operations of one kind cost the same afterwards.
        kind = _kind(func, args, kwargs)
        self._noted.append((position, kind))
        if kind in self._first:
            self._later[kind] = min(seconds, self._later.get(kind, seconds))
            return result
        if seconds > WORTH_REPEATING_S and (func in _PURE or _is_pointwise(func)):
            for _ in range(REPEATS):
                began = self._now()
                func(*args, **kwargs)
                seconds = min(seconds, self._now() - began)
        self._first[kind] = seconds
        return result

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return time.perf_counter()
        # Other processes on the machine do not count.
        return time.thread_time()

    def between(self, bounds: Sequence[int]) -> list[float]:
        """The seconds before the first of the rising positions `bounds`, between them, and from the last one on."""
        parts = [0.0] * (len(bounds) + 1)
        for position, kind in self._noted:
            parts[bisect_right(bounds, position)] += self._later.get(kind, self._first[kind])
        return parts


class BackwardWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that times a backward's operations at the positions in the forward that they belong to."""

    def __init__(self, clock: OperationClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._position = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._clock.run(self._position, func, args, kwargs or {})

    def reached(self, position: int) -> None:
        """Note that the gradient of what existed at `position` is complete: what comes now belongs before it."""
        self._position = min(self._position, position - 1)

    @contextmanager
    def going_back(self, end: int) -> Iterator[None]:
        """A context for a backward of what existed at position `end`."""
        self._position = end
        with self:
            yield


@contextmanager
def _uncollected() -> Iterator[None]:
    """A context in which no garbage collection begins: what is timed is an operation of less than a millisecond."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _kind(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What operations that cost the same have in common: the function, the shapes of its tensors, its other arguments."""
    return func, tuple(map(_word, pytree.tree_leaves((args, kwargs))))


def _word(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf if isinstance(leaf, (bool, int, float)) else repr(leaf)
    return tuple(leaf.shape), leaf.stride() if leaf.layout is torch.strided else leaf.layout, leaf.dtype, leaf.device


def _is_pointwise(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    tags = getattr(func, "tags", ())
    is_pure = schema is not None and not schema.is_mutable and torch.Tag.nondeterministic_seeded not in tags
    return is_pure and torch.Tag.pointwise in tags


@dataclass
class Life:
    """The life of a tensor that depends on parameters: when it was made and last used."""

    tensor: Tensor
    made: int
    used: int
    num_uses: int = 0
    cast_of: str = ""
    """The parameter that it is a copy of in another dtype, as autocast makes one for all uses."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees every operation of a forward, even inside custom functions and checkpoints.

    Args:
        named: parameters and buffers by identity.
        streams: returns the states of torch's random streams.
        copies: parameters' names by the identity of their copies, which stand for them; may grow.
    """

    def __init__(
        self,
        named: Mapping[int, str],
        clock: OperationClock,
        streams: Callable[[], Sequence[Tensor]],
        copies: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._named, self._copies, self._clock, self._streams = named, copies, clock, streams
        self.event = 0
        self.lives: dict[int, Life] = {}
        self.uses: dict[str, list[int]] = {}
        self.touched: dict[int, int] = {}
        """The last event in which each tensor was used, by identity."""
        self.written: dict[int, int] = {}
        """The last event in which each piece of memory was written to in place."""
        self._tainted: dict[int, int] = {}
        """Memory that holds something computed from parameters, and since which event."""
        self._drew = False
        """Whether random numbers were drawn for something that depends on parameters. Later ones then depend on them
        too: a stage that only follows would draw them too early."""
        self._kept: list[Any] = []

    def __torch_dispatch__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        draws = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        before = self._streams() if draws else ()
        self.event += 1
        result = self._clock.run(self.event, func, args, kwargs)
        inputs = _tensors((args, kwargs))
        depends = self.touch(inputs)
        if draws and not all(map(torch.equal, before, self._streams())):
            depends = self._drew = depends or self._drew
        self.written |= dict.fromkeys(map(memory_of, written_by(func, args, kwargs)), self.event)
        for tensor in _tensors(result):
            # Tensors are known by identity, so each must live until the end.
            self._kept.append(tensor)
            if depends and self._name(tensor) is None:
                self._tainted.setdefault(memory_of(tensor), self.event)
                self.lives.setdefault(
                    id(tensor), Life(tensor, self.event, self.event, cast_of=self._cast(func, inputs))
                )
        return result

    def _cast(self, func: Callable[..., Any], inputs: Sequence[Tensor]) -> str:
        is_cast = func is cast and self._is_parameter(inputs[0])
        return (self._name(inputs[0]) or "") if is_cast else ""

    def touch(self, inputs: Sequence[Tensor]) -> bool:
        """Note that these are used now; return whether any of them depends on parameters."""
        depends = False
        for tensor in inputs:
            self.touched[id(tensor)] = self.event
            if (name := self._name(tensor)) is not None:
                self.uses.setdefault(name, []).append(self.event)
                depends = depends or self._is_parameter(tensor)
            elif (life := self.life(tensor)) is not None:
                life.used = self.event
                life.num_uses += 1
                depends = True
        return depends

    def _name(self, tensor: Tensor) -> str | None:
        return self._named.get(id(tensor)) or self._copies.get(id(tensor))

    def _is_parameter(self, tensor: Tensor) -> bool:
        return isinstance(tensor, nn.Parameter) or id(tensor) in self._copies

    def life(self, tensor: Tensor) -> Life | None:
        """The life of a tensor; None when it does not depend on parameters."""
        since = self._tainted.get(memory_of(tensor))
        if id(tensor) not in self.lives and since is not None:
            self._kept.append(tensor)
            self.lives[id(tensor)] = Life(tensor, since, since)
        return self.lives.get(id(tensor))

    def alive(self, event: int) -> Iterator[Life]:
        """Everything that was made before `event` and is used after it."""
        return (life for life in self.lives.values() if life.made < event < life.used)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def written_by(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The arguments that an operation writes to, by its schema."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    named = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | dict(kwargs)
    changed = (one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write)
    return _tensors([named[name] for name in changed if name in named])


def memory_of(tensor: Tensor) -> int:
    """A number that is the same for tensors that share memory."""
    pointer: int = tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)  # noqa: SLF001
    return pointer
