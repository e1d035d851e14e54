"""Tensors in the places where layers keep parameters, while a stage computes with borrowed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn


class StandIns:
    """The stand-ins for some parameters of a model.

    Args:
        model: its layers look for the parameters.
        names: the parameters'.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self._parameters = [model.get_parameter(name) for name in names]
        self._places = [_places_of(model, parameter) for parameter in self._parameters]

    def use(self, tensors: Sequence[Tensor]) -> None:
        """Let layers find these from here on, one for each parameter."""
        for places, tensor in zip(self._places, tensors, strict=True):
            for container, key in places:
                container[key] = tensor

    def put_back(self) -> None:
        """Let layers find the parameters again."""
        self.use(self._parameters)


def _places_of(model: nn.Module, parameter: nn.Parameter) -> list[tuple[Any, Any]]:
    """The tables of parameters, and the lists that recurrent layers keep in addition."""
    places: list[tuple[Any, Any]] = []
    for module in model.modules():
        table = module._parameters  # noqa: SLF001
        places.extend((table, key) for key, value in table.items() if value is parameter)
        flat = module._flat_weights if isinstance(module, nn.RNNBase) else []  # noqa: SLF001
        places.extend((flat, number) for number, value in enumerate(flat) if value is parameter)
    return places
