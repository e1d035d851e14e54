"""Tensors in the places where layers keep parameters, for as long as a stage computes with borrowed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn


class StandIns:
    """For some parameters of a model.

    Args:
        model: whose layers look for the parameters.
        names: of the parameters.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self._parameters = [model.get_parameter(name) for name in names]
        self._places = [_places_of(model, parameter) for parameter in self._parameters]

    def use(self, tensors: Sequence[Tensor]) -> None:
        """From here on, layers find these, one for each parameter."""
        for places, tensor in zip(self._places, tensors, strict=True):
            for container, key in places:
                container[key] = tensor

    def put_back(self) -> None:
        """Layers find the parameters again."""
        self.use(self._parameters)


def _places_of(model: nn.Module, parameter: nn.Parameter) -> list[tuple[Any, Any]]:
    """Tables of parameters, and the lists that recurrent layers have besides."""
    places: list[tuple[Any, Any]] = []
    for module in model.modules():
        table = module._parameters  # noqa: SLF001
        places.extend((table, key) for key, value in table.items() if value is parameter)
        flat = module._flat_weights if isinstance(module, nn.RNNBase) else []  # noqa: SLF001
        places.extend((flat, number) for number, value in enumerate(flat) if value is parameter)
    return places
