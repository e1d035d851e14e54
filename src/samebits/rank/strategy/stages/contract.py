"""What a cut model needs from where its stages are: other ranks, or other devices of this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.rank.strategy.norm import gradient_norm
from samebits.rank.strategy.replica.model_layout import ModelLayout
from samebits.rank.strategy.stages.cutting.model_cut import Entry, ModelCut, Stage
from samebits.rank.strategy.stages.cutting.module_marks import StatePlace
from samebits.rank.strategy.stages.replaced_method import replace_method


class Stages(ABC):
    """The stages of one model, once it is cut. Everything else is as if the whole model were on this rank."""

    num_stages: int
    is_in_lane = False
    """Whether a call of the model belongs to a lane right now; set by the pass."""

    @abstractmethod
    def install(self, model: nn.Module, cut: ModelCut, used: Collection[str], layout: ModelLayout) -> None:
        """Put the stages where they belong, and lay out what is here.

        Args:
            model: the whole one; the same object stays.
            used: names of tensors whose memory has other users.
            layout: where parameters and buffers are laid out.
        """

    def begin_pass(self) -> None:  # noqa: B027 - nothing to do
        """Begin a pass."""

    def going_back(self) -> AbstractContextManager[None]:
        """A context for a backward of the calls that the open lane has made."""
        return nullcontext()

    def may_lack(self) -> bool:
        """Whether the running backward may reach parameters with nothing."""
        return False

    def end_lane(self) -> None:  # noqa: B027
        """End the lane, which is over or left."""

    def end_pass(self) -> None:  # noqa: B027
        """End the pass; gradients are complete."""

    def take_optimizer(self, optimizer: Optimizer, declared: str | None) -> None:  # noqa: B027
        """See `Strategy.take_optimizer`."""

    def before_update(self, optimizer: Optimizer) -> None:  # noqa: B027
        """See `Strategy.before_update`."""

    def here(self, parameters: Sequence[nn.Parameter]) -> Sequence[nn.Parameter]:
        """Those of `parameters` that this rank holds."""
        return parameters

    def gradient_norm(self, parameters: Iterable[nn.Parameter], norm_type: float) -> float:
        return gradient_norm([p.grad for p in parameters if p.grad is not None], norm_type)

    def holder_of(self, tensor: Tensor) -> int | None:  # noqa: ARG002
        return None

    def take_waited_s(self) -> float:
        return 0.0

    def report(self) -> dict[str, Any] | None:
        return None

    @abstractmethod
    def close(self) -> None:
        """Restore the model, except for the parameters that it does not have here."""


class Elsewhere:
    """The layers of other stages, as seen from one stage.

    Args:
        model: the whole model, with layers of other stages.
        changing: the state that a call of the model changes.
    """

    def __init__(self, model: nn.Module, stage: Stage, changing: Sequence[StatePlace]) -> None:
        self._model, self._stage, self._changing = model, stage, changing

    def modules_of(self, name: str) -> set[nn.Module]:
        """The layer of this name with its parts, except those that this stage computes too."""
        here = {part for layer in self._stage.layers for part in self._model.get_submodule(layer).modules()}
        return set(self._model.get_submodule(name).modules()) - here

    def modules(self) -> set[nn.Module]:
        """The modules of all layers that this stage leaves out."""
        return {module for name in self._stage.skipped for module in self.modules_of(name)}

    def what_matters(self, elsewhere: set[nn.Module]) -> list[StatePlace]:
        """The changing state that does not belong only to these modules."""
        inside = {path for path, module in self._model.named_modules() if module in elsewhere}
        return [place for place in self._changing if place.owner not in inside]


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Passing = Callable[[tuple[Any, ...], dict[str, Any]], Arguments]


class Gate:
    """A counter of a layer's calls.

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
        # [Note: why a gate is no hook]
        # torch's fast path for attention refuses layers that have hooks, and its other path has other bits.
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
