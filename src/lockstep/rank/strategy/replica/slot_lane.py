"""A lane whose gradients go into a slot, are added to those of other lanes, and are sent to other ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import add, attrgetter, is_

import torch
from torch import Tensor, nn

from lockstep.errors import UsageError
from lockstep.machine.torch_private import add_each
from lockstep.rank.strategy.replica.gradient_buffers import Slot, SlotPool
from lockstep.rank.strategy.replica.lane import Lane, gradient_taken_away, gradients_touched
from lockstep.rank.strategy.replica.rows import Rows, is_rows

_grad = attrgetter("grad")


class SlotLane(Lane):
    """One lane between `begin_lane` and `end_lane`.

    Args:
        number: the lane's.
        pool: where the slot comes from; its parameters' `grad` is used until the lane ends.
        arrivals: gets the number of each small parameter that a backward reaches, where that is all there is to do.
        onto: a sum of earlier lanes to which this one is added as its gradients arrive, in place of a slot of its own.
            It must have one backward, which reaches each parameter once, and a weight of 1. Not where there are tables.
        sparse: the parameters whose `grad` stays sparse between backward calls; the script sees others whole.
    """

    def __init__(
        self,
        number: int,
        pool: SlotPool,
        arrivals: list[int],
        onto: Slot | None = None,
        sparse: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(number)
        self.slot: Slot = pool.take_unfilled() if onto is None else onto
        self.is_added = onto is not None
        """Whether the slot holds earlier lanes too."""
        self._parameters: Sequence[nn.Parameter] = pool.parameters
        self._kept_sparse, self._tables = sparse, pool.tables
        self._pool, self._flat_of, self._arrivals = pool, pool.flat_of, arrivals
        self._is_copied = [True] * len(self._parameters) if self.is_added else pool.is_copied
        self._copied: Sequence[int] = range(len(self._parameters)) if self.is_added else pool.copied
        self._arrived = [False] * len(self._parameters)
        self._expected: list[Tensor | None] = [*self.slot.views]
        """What each parameter's `grad` must be."""
        for copied in self._copied:
            self._expected[copied] = None
        arrivals.clear()
        set_gradients(self._parameters, self._expected)
        self._versions = self.slot.versions()
        self._seen = self.slot.versions()
        self._writes = [0] * len(self._versions)
        """For each flat, how many gradients were added to earlier lanes' as they arrived."""
        self._sparse: dict[int, tuple[Tensor, int]] = {}
        """Of tables that have nothing but rows so far: the gradient as autograd made it, and its version."""
        self._rows: dict[int, Rows] = {}
        """The same, added up when the backward ended; what has arrived in one that failed is not."""

    def gradient_arrived(self, number: int, *, may_lack: bool = False) -> bool:
        """Take parameter `number`'s new gradient. A large first one moves into its place, as if added to zeros there.

        Args:
            number: of the parameter.
            may_lack: whether autograd may have reached the parameter with nothing, because a later stage had nothing.

        Returns:
            Whether there is a gradient.
        """
        parameter, view, flat = self._parameters[number], self.slot.views[number], self._flat_of[number]
        if number in self._tables and is_rows(parameter.grad):
            return self._rows_arrived(number, parameter.grad)
        if may_lack and (
            parameter.grad is None or (parameter.grad is view and view._version == self._seen[flat])  # noqa: SLF001
        ):
            return False
        if self._arrived[number]:
            self._note_twice()
        if number in self._sparse:  # the first whole gradient; torch has added the rows to it
            del self._sparse[number]
            self._rows.pop(number, None)
            self._put(number, parameter.grad)
        elif self._is_copied[number] and not self._arrived[number]:
            self._put(number, parameter.grad)
        self._arrived[number] = True
        self._seen[flat] = view._version  # noqa: SLF001 - changes when anything in the flat is written to
        return True

    def _put(self, number: int, gradient: Tensor | None) -> None:
        """Put the first whole gradient into its place, or add it to the earlier lanes' there."""
        if gradient is None:
            raise gradient_taken_away()
        view = self.slot.views[number]
        if self.is_added:
            view.add_(gradient if gradient.layout is torch.strided else gradient.to_dense())
            self._writes[self._flat_of[number]] += 1
        elif gradient.layout is torch.strided:
            torch.add(gradient, 0, out=view)
        else:
            view.zero_().add_(gradient)
        self._parameters[number].grad = self._expected[number] = view

    def _add_small(self) -> None:
        """Add the small gradients that were only noted to the earlier lanes', all in one call."""
        if self.slot.versions() != list(map(add, self._versions, self._writes)):
            raise UsageError(
                "A hook wrote into a parameter's gradient during backward, after it had been added to those of earlier lanes.",
                "Register it with parameter.register_post_accumulate_grad_hook before the forward.",
            )
        gradients = [self._parameters[number].grad for number in self._arrivals]
        present = [one if one.layout is torch.strided else one.to_dense() for one in gradients if one is not None]
        if len(present) < len(gradients):
            raise gradient_taken_away()
        views = [self.slot.views[number] for number in self._arrivals]
        if views:
            add_each(views, present)
        for number, view in zip(self._arrivals, views, strict=True):
            self._parameters[number].grad = self._expected[number] = view

    def _rows_arrived(self, number: int, gradient: Tensor | None) -> bool:
        """Leave a table's gradient as it is; say that there is none for a bucket."""
        assert gradient is not None
        if self._arrived[number]:
            self._note_twice()
        self._sparse[number] = gradient, gradient._version  # noqa: SLF001
        self._rows.pop(number, None)
        self._expected[number] = gradient
        self._arrived[number] = True
        return False

    def _note_twice(self) -> None:
        self.came_twice = True
        if self.is_added:
            raise UsageError(
                "A parameter got two gradients in one backward, which no lane before it did, so they were added in another "
                "order than on one rank.",
                "Use torch.utils.checkpoint with use_reentrant=False.",
            )

    def take(self, number: int, gradient: Tensor) -> None:
        if number in self._tables and is_rows(gradient):
            self._parameters[number].grad = gradient
            self._rows_arrived(number, gradient)
            return
        view = self.slot.views[number]
        self._parameters[number].grad = self._expected[number] = view.copy_(gradient)
        self._arrived[number] = True
        self._seen[self._flat_of[number]] = view._version  # noqa: SLF001

    def begin_backward(self) -> None:
        for number, (gradient, _) in self._sparse.items():
            self._parameters[number].grad = gradient

    def backward_finished(self, *, may_lack: bool = False) -> None:  # noqa: ARG002 - known since the gradients came
        for number in self._arrivals:
            if self._arrived[number]:
                self._note_twice()
            self._arrived[number] = True
        if self.is_added:
            self._add_small()
        self._arrivals.clear()
        for number, (gradient, _) in self._sparse.items():
            self._sparse[number] = gradient, gradient._version  # noqa: SLF001
            self._rows[number] = Rows.of(gradient)
            if number not in self._kept_sparse:
                self._parameters[number].grad = self._expected[number] = view = self.slot.views[number]
                self._rows[number].fill(view)
        self._versions = self.slot.versions()
        self._seen = [*self._versions]  # what `fill` wrote is no gradient that arrived

    def check_untouched(self) -> None:
        same = all(map(is_, map(_grad, self._parameters), self._expected)) and self._rows.keys() == self._sparse.keys()
        for gradient, version in self._sparse.values():
            same = same and gradient._version == version  # noqa: SLF001
        if not same or self._versions != self.slot.versions():
            raise gradients_touched()

    def arrived(self) -> Sequence[bool]:
        return self._arrived

    def slot_for_reading(self, pool: SlotPool) -> Slot:  # noqa: ARG002 - it has one
        for number, rows in self._rows.items():
            if number in self._kept_sparse or not self._arrived[number]:
                rows.fill(self.slot.views[number])
        return self.slot

    def fill(self) -> Mapping[int, Rows]:
        """End the lane: fill the places of large parameters that got no gradient with zeros.

        Returns:
            Tables of which there are only rows, by number, those without a gradient too; their places mean nothing.
        """
        for number in () if self.is_added or all(self._arrived) else self._copied:
            if self._arrived[number]:
                continue
            view = self.slot.views[number]
            if number in self._tables:
                self._rows[number] = Rows.none(view, view.dtype)
            else:
                view.zero_()
        return self._rows


def set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Set `grad` of each parameter, in few steps of Python for all."""
    deque(map(setattr, parameters, repeat("grad"), gradients), maxlen=0)
