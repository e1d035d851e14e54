"""What a script switches on the way, and no weight tells: which modules train, and which parameters are not frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Modes:
    """Of all prepared models, by name; two are compared to find out what was switched in between."""

    training: Mapping[str, bool] = field(default_factory=dict)
    """Of each module: whether it trains, not evaluates."""
    trained: Mapping[str, bool] = field(default_factory=dict)
    """Of each parameter: whether it needs a gradient, is not frozen."""

    @classmethod
    def of(cls, models: Sequence[nn.Module]) -> Modes:
        """As they are."""
        return cls(
            {name: module.training for name, module in _modules(models).items()},
            {name: parameter.requires_grad for name, parameter in _parameters(models).items()},
        )

    def since(self, first: Modes) -> Modes:
        """What is switched another way than at first."""
        return Modes(_unlike(self.training, first.training), _unlike(self.trained, first.trained))

    def switch(self, models: Sequence[nn.Module]) -> None:
        """Switch what is named here, and leave the rest."""
        modules, parameters = _modules(models), _parameters(models)
        for name in self.training.keys() & modules.keys():  # one may have gone since
            modules[name].training = self.training[name]
        for name in self.trained.keys() & parameters.keys():
            if parameters[name].requires_grad != (trained := self.trained[name]):
                parameters[name].requires_grad_(trained)

    def told(self) -> dict[str, Any]:
        """For a state; empty when nothing is switched another way."""
        named = {"training": dict(self.training), "trained": dict(self.trained)}
        return {key: switches for key, switches in named.items() if switches}

    @classmethod
    def read(cls, told: Any, models: Sequence[nn.Module], *, may_lack: bool = False) -> Modes | None:
        """What a state tells, or None when it tells nothing that `told` gives, or names what these models do not have.

        `may_lack`: whether they may lack what it names, because that is still to come.
        """
        if not isinstance(told, dict) or told.keys() - {"training", "trained"}:
            return None
        for key, known in (("training", _modules(models)), ("trained", _parameters(models))):
            switches = told.get(key, {})
            if not isinstance(switches, dict) or (switches.keys() - known.keys() and not may_lack):
                return None
            if not all(type(switch) is bool for switch in switches.values()):
                return None
        return cls(told.get("training", {}), told.get("trained", {}))


def _modules(models: Sequence[nn.Module]) -> dict[str, nn.Module]:
    return {f"{number}.{name}": one for number, model in enumerate(models, 1) for name, one in model.named_modules()}


def _parameters(models: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    return {f"{number}.{name}": one for number, model in enumerate(models, 1) for name, one in model.named_parameters()}


def _unlike(now: Mapping[str, bool], first: Mapping[str, bool]) -> dict[str, bool]:
    return {name: switch for name, switch in now.items() if first.get(name, switch) != switch}
