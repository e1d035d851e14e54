"""Parameters that several stages use: the first of them holds them and sends them to the others, with the activations.

Such a parameter crosses a cut like an activation: its gradients come back with theirs and are added to those of the previous
stage in autograd's own order, so a lane's gradient has the bits of one rank. Its values cross once per pass, and before an
evaluation if they changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from samebits.rank.strategy.agreement import bit_sums


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


Mark = tuple[int, int, int]
"""Version, address and a sum over the bits of what was sent."""


class TiedParameters:
    """What one stage borrows from the previous one, and passes on to the next.

    Args:
        model: its layers use the parameters.
        borrowed: names of parameters that come from the previous stage.
        passed_on: names of parameters that go to the next stage; its own, or borrowed ones.
        in_pass: whether a call belongs to a pass, in which parameters do not change.
    """

    def __init__(
        self, model: nn.Module, borrowed: Sequence[str], passed_on: Sequence[str], in_pass: Callable[[], bool]
    ) -> None:
        self._borrowed, self._passed_on, self._in_pass = borrowed, passed_on, in_pass
        self._own = {name: model.get_parameter(name) for name in passed_on if name not in borrowed}
        self._stand_ins = StandIns(model, borrowed)
        self._values: dict[str, Tensor] = {}
        self._present: dict[str, Tensor] = {}
        self._marks: dict[str, Mark] = {}
        """The marks of what an evaluation sent last; empty after a pass."""
        self._sent_in_pass = False
        self._news: set[str] = set()
        """The borrowed parameters that came with new values in the current call."""

    def begin_pass(self) -> None:
        """Begin a pass: parameters may have changed since the last one."""
        self._sent_in_pass = False

    def receive(self, present: Sequence[bool], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Take new values for some of the borrowed parameters; return all of them, each as a new tensor."""
        self._news = {name for name, is_new in zip(self._borrowed, present, strict=True) if is_new}
        arrived = iter(tensors)
        self._values |= {name: next(arrived) for name in self._borrowed if name in self._news}
        return [self._values[name].detach() for name in self._borrowed]

    def use(self, tensors: Sequence[Tensor]) -> None:
        """Let layers find these in place of the borrowed parameters from here on."""
        self._present = dict(zip(self._borrowed, tensors, strict=True))
        self._stand_ins.use(tensors)

    def put_back(self) -> None:
        """Let layers find the absent parameters again, which cannot be used by mistake."""
        self._stand_ins.put_back()
        self._present.clear()

    def to_hand_over(self) -> tuple[list[Tensor], list[bool]]:
        """Return what goes to the next stage, and which of it has new values there."""
        tensors = [self._own[name] if name in self._own else self._present[name] for name in self._passed_on]
        has_changed = self._own_have_changed()
        return tensors, [has_changed if name in self._own else name in self._news for name in self._passed_on]

    def _own_have_changed(self) -> bool:
        # Within a pass parameters do not change, so they are sent with its first call. Evaluations compare marks.
        if not self._own or (self._in_pass() and self._sent_in_pass):
            return False
        self._sent_in_pass = self._in_pass()
        known = self._marks
        self._marks = {} if self._sent_in_pass else {name: _mark(parameter) for name, parameter in self._own.items()}
        return self._marks != known or self._sent_in_pass


def _mark(parameter: nn.Parameter) -> Mark:
    return parameter._version, parameter.data_ptr(), bit_sums([parameter.detach()])[0]  # noqa: SLF001
