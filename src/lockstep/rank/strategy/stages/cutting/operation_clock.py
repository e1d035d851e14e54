"""How long operations take, measured while they run for real: one run of a lane must do.

A first run is a bad measurement: kernels are compiled, loaded and chosen; so
operations of one kind, on inputs of the same shapes, are taken to cost the same: the least of all runs but the first.
Where there is only one, and it is known to be pure and took some time, it is run again on the same inputs. That alone
would be too little: what an operation has just used is in the caches, which a lane's weights are not.
"""

from __future__ import annotations

import gc
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lockstep.machine.torch_private import TorchDispatchMode, pytree

REPEATS = 2
"""The number of extra runs."""
WORTH_REPEATING_S = 20e-6

_PURE = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "convolution_backward",
        "embedding",
        "embedding_dense_backward",
        "native_layer_norm",
        "native_layer_norm_backward",
        "native_batch_norm_backward",
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward",
        "_softmax",
        "_softmax_backward_data",
        "_log_softmax",
        "_log_softmax_backward_data",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "clone",
        "cat",
    )
)
"""Operations that only read their inputs, make new outputs, and choose kernels. Schemas do not tell: that of
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
        """Call `func` and return its result."""
        with _uncollected():
            began = self._now()
            result = func(*args, **kwargs)
            seconds = self._now() - began
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
        return time.thread_time()  # other processes on the machine do not count

    def between(self, bounds: Sequence[int]) -> list[float]:
        """The seconds before the first of the rising positions `bounds`, between them, and from the last one on."""
        parts = [0.0] * (len(bounds) + 1)
        for position, kind in self._noted:
            parts[bisect_right(bounds, position)] += self._later.get(kind, self._first[kind])
        return parts


class BackwardWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that times a backward's operations at the positions in the forward that they belong to.

    Args:
        clock: notes them.
    """

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
