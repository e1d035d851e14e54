"""Where a stage begins: one of the calls that a forward makes of a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from lockstep.rank.strategy.stages.cutting.model_cut import Entry
from lockstep.rank.strategy.stages.replaced_method import replace_method

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Passing = Callable[[tuple[Any, ...], dict[str, Any]], Arguments]


class Gate:
    """A counter of a layer's calls. It is no hook: torch's fast path for attention refuses layers with hooks.

    Args:
        model: its layer is watched until `remove`.
        entry: which call of which layer.
        passing: gets that call's arguments, and returns those that the layer is called with.
        outside: gets the arguments of calls between forwards: activation checkpointing computes a layer again, or the
            script calls it directly.
    """

    def __init__(self, model: nn.Module, entry: Entry, passing: Passing, outside: Passing | None = None) -> None:
        self._entry, self._passing, self._outside = entry, passing, outside
        self.count: int | None = None
        """The number of calls in the current forward; None between forwards."""
        layer = model.get_submodule(entry.layer)
        self._call: Callable[..., Any] = layer._call_impl  # noqa: SLF001 - what runs the user's hooks and `forward`
        self.remove = replace_method(layer, "_call_impl", self._called)
        """Let the layer be called as before."""

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        if self.count is None:
            if self._outside is not None:
                args, kwargs = self._outside(args, kwargs)
            return self._call(*args, **kwargs)
        self.count += 1
        if self.count == self._entry.number:
            args, kwargs = self._passing(args, kwargs)
        return self._call(*args, **kwargs)
