"""What the optimizers have when a step begins: hyperparameters, which are the same for its batches, and earlier gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UsageError


class Rates:
    """What the groups of the optimizers have, from the beginning of a step on.

    Args:
        optimizers: the prepared ones.
    """

    def __init__(self, optimizers: Callable[[], Iterable[Any]]) -> None:
        self._optimizers = optimizers
        self._known: dict[tuple[int, int, str], Any] = {}
        self._at_backward = self._known

    def begin(self) -> None:
        """The first batch of a step is next."""
        self._known = self._at_backward = self._now()

    def at_backward(self, *, is_first: bool) -> None:
        """A batch has its loss. A script that sets the step's rates does it in the first batch before this.

        Raises:
            UsageError: when they have changed in a later batch.
        """
        if is_first:
            self._at_backward = self._now()
        else:
            self._require(self._known)

    def end(self, *, knows_steps: bool, is_last: bool) -> None:
        """A batch is over.

        Args:
            knows_steps: whether the script asks where a step is over. One that does not changes a rate by its batches.
            is_last: of the step, where a rate for the next one may be set.

        Raises:
            UsageError: when one was changed between two batches of a step.
        """
        if not (knows_steps and is_last):
            self._require(self._at_backward if knows_steps else self._known)
        self._known = self._at_backward

    @contextmanager
    def own(self) -> Iterator[None]:
        """A prepared optimizer or scheduler acts, once for the step: what it changes is as it should be."""
        before = self._now()
        yield
        changes = {name: value for name, value in self._now().items() if before.get(name) != value}
        self._known, self._at_backward = self._known | changes, self._at_backward | changes

    def _require(self, known: dict[tuple[int, int, str], Any]) -> None:
        now = self._now()
        changed = next((name for name in known if name in now and now[name] != known[name]), None)
        if changed is not None:
            raise UsageError(
                f"{changed[2]} of an optimizer was changed between two batches of one step, of which a process has more where "
                "there are fewer.",
                "Give the scheduler to accelerator.prepare; what the script changes by itself, change where "
                "accelerator.sync_gradients is true.",
            )

    def _now(self) -> dict[tuple[int, int, str], Any]:
        return {
            (which, number, name): (id(value), value._version) if isinstance(value, Tensor) else value
            for which, optimizer in enumerate(self._optimizers())
            for number, group in enumerate(optimizer.param_groups)
            for name, value in group.items()
            if name in optimizer.defaults and (isinstance(value, Tensor) or _is_number(value))
        }


def _is_number(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return all(isinstance(part, (int, float)) and not isinstance(part, bool) for part in parts)


class EarlierGradients:
    """Those of one step."""

    def __init__(self) -> None:
        self._before: dict[Tensor, Tensor] = {}

    def put_aside(self, optimizers: Iterable[Any]) -> None:
        """A step begins."""
        self._before = {}
        for parameter in chain.from_iterable(map(_parameters_of, optimizers)):
            if parameter.grad is not None:
                self._before[parameter], parameter.grad = parameter.grad, None

    def forget(self, optimizer: Any) -> None:
        """The script calls `optimizer.zero_grad()` in a lane: what was there before the step goes."""
        for parameter in _parameters_of(optimizer):
            self._before.pop(parameter, None)

    def add(self) -> None:
        """The step's gradients are complete."""
        before, self._before = self._before, {}
        with torch.no_grad():
            for parameter, gradient in before.items():
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def _parameters_of(optimizer: Any) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
