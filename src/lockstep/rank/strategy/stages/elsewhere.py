"""The parts of a model that other stages compute, and their state that matters here nevertheless."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from lockstep.rank.strategy.stages.cutting.model_cut import Stage
from lockstep.rank.strategy.stages.cutting.module_marks import StatePlace


class Elsewhere:
    """The layers of other stages, as seen from one stage.

    Args:
        model: the whole model, with layers of other stages.
        stage: this stage.
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
