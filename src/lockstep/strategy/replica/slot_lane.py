"""A lane whose gradients go into a slot, are added to those of other lanes, and are sent to other ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter, is_

import torch
from torch import Tensor, nn

from lockstep.errors import UsageError
from lockstep.strategy.replica.lane import Lane, gradient_taken_away, gradients_touched
from lockstep.strategy.replica.slots import Slot, SlotPool

_grad = attrgetter("grad")


class SlotLane(Lane):
    """One lane between `begin_lane` and `end_lane`.

    Args:
        number: the lane's.
        pool: where the slot comes from; its parameters' `grad` is used until the lane ends.
        arrivals: gets the number of each small parameter that a backward reaches, where that is all there is to do.
        onto: a sum of earlier lanes to which this one is added as its gradients arrive, in place of a slot of its own.
            It must have one backward, which reaches each parameter once, and a weight of 1.
    """

    def __init__(self, number: int, pool: SlotPool, arrivals: list[int], onto: Slot | None = None) -> None:
        super().__init__(number)
        self.slot: Slot = pool.take_unfilled() if onto is None else onto
        self.is_added = onto is not None
        """Whether the slot holds earlier lanes too."""
        self._parameters: Sequence[nn.Parameter] = pool.parameters
        self._pool, self._flat_of, self._arrivals = pool, pool.flat_of, arrivals
        self._is_copied = pool.is_copied if onto is None else [True] * len(self._parameters)
        self._arrived = [False] * len(self._parameters)
        self._expected: list[Tensor | None] = [*self.slot.views]
        """What each parameter's `grad` must be."""
        for copied in pool.copied if onto is None else range(len(self._parameters)):
            self._expected[copied] = None
        arrivals.clear()
        set_gradients(self._parameters, self._expected)
        self._versions = self.slot.versions()
        self._seen = self.slot.versions()

    def gradient_arrived(self, number: int, *, may_lack: bool = False) -> bool:
        """Take parameter `number`'s new gradient. A large first one moves into its place, as if added to zeros there.

        Args:
            number: of the parameter.
            may_lack: whether autograd may have reached the parameter with nothing, because a later stage had nothing.

        Returns:
            Whether there is a gradient.
        """
        parameter, view, flat = self._parameters[number], self.slot.views[number], self._flat_of[number]
        if may_lack and (
            parameter.grad is None or (parameter.grad is view and view._version == self._seen[flat])  # noqa: SLF001
        ):
            return False
        if self._arrived[number]:
            self._note_twice()
        elif self._is_copied[number]:
            gradient = parameter.grad
            if gradient is None:
                raise gradient_taken_away()
            if self.is_added:
                view.add_(gradient if gradient.layout is torch.strided else gradient.to_dense())
            elif gradient.layout is torch.strided:
                torch.add(gradient, 0, out=view)
            else:
                view.zero_().add_(gradient)
            parameter.grad = self._expected[number] = view
        self._arrived[number] = True
        self._seen[flat] = view._version  # noqa: SLF001 - changes when anything in the flat is written to
        return True

    def _note_twice(self) -> None:
        self.came_twice = True
        if self.is_added:
            raise UsageError(
                "A parameter got two gradients in one backward, which no lane before it did, so they were added in another "
                "order than on one rank.",
                "Use torch.utils.checkpoint with use_reentrant=False.",
            )

    def take(self, number: int, gradient: Tensor) -> None:
        view = self.slot.views[number]
        self._parameters[number].grad = self._expected[number] = view.copy_(gradient)
        self._arrived[number] = True
        self._seen[self._flat_of[number]] = view._version  # noqa: SLF001

    def backward_finished(self, *, may_lack: bool = False) -> None:  # noqa: ARG002 - known since the gradients came
        for number in self._arrivals:
            if self._arrived[number]:
                self._note_twice()
            self._arrived[number] = True
        self._arrivals.clear()
        self._versions = self.slot.versions()

    def check_untouched(self) -> None:
        same = all(map(is_, map(_grad, self._parameters), self._expected))
        if not same or self._versions != self.slot.versions():
            raise gradients_touched()

    def arrived(self) -> Sequence[bool]:
        return self._arrived

    def slot_for_reading(self, pool: SlotPool) -> Slot:  # noqa: ARG002 - it has one
        return self.slot

    def fill(self) -> None:
        """Fill the places of large parameters that got no gradient with zeros."""
        if self.is_added:
            return
        for number in self._pool.copied:
            if not self._arrived[number]:
                self.slot.views[number].zero_()


def set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Set `grad` of each parameter, in few steps of Python for all."""
    deque(map(setattr, parameters, repeat("grad"), gradients), maxlen=0)
