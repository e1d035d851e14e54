"""A lane whose gradients go into a slot, are added to those of other lanes, and are sent to other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lockstep.strategy.replica.lane import Lane, gradient_taken_away, gradients_touched
from lockstep.strategy.replica.rows import Rows, is_rows
from lockstep.strategy.replica.slots import Slot, SlotPool


class SlotLane(Lane):
    """One lane between `begin_lane` and `end_lane`.

    Args:
        number: the lane's.
        pool: where the slot comes from; its parameters' `grad` is used until the lane ends.
        sparse: the parameters whose `grad` stays sparse between backward calls; the script sees others whole.
    """

    def __init__(self, number: int, pool: SlotPool, sparse: frozenset[int] = frozenset()) -> None:
        super().__init__(number)
        self.slot: Slot = pool.take_unfilled()
        self._parameters: Sequence[nn.Parameter] = pool.parameters
        self._kept_sparse = sparse
        self._copied, self._tables = pool.copied, pool.tables
        self._flat_of = [segment.flat for segment in pool.segments]
        self._arrived = [False] * len(self._parameters)
        for parameter, view, is_copied in zip(self._parameters, self.slot.views, self._copied, strict=True):
            parameter.grad = None if is_copied else view
        self._versions = self.slot.versions()
        self._seen = self.slot.versions()
        self._sparse: dict[int, tuple[Tensor, int]] = {}
        """Of tables that have nothing but rows so far: the gradient as autograd made it, and its version."""
        self._rows: dict[int, Rows] = {}
        """The same, added up."""

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
        if number in self._sparse:  # the first whole gradient; torch has added the rows to it
            del self._sparse[number]
            self._rows.pop(number, None)
            self._arrived[number] = False
        if self._copied[number] and not self._arrived[number]:
            gradient = parameter.grad
            if gradient is None:
                raise gradient_taken_away()
            if gradient.layout is torch.strided:
                torch.add(gradient, 0, out=view)
            else:
                view.zero_().add_(gradient)
            parameter.grad = view
        self._arrived[number] = True
        self._seen[flat] = view._version  # noqa: SLF001 - changes when anything in the flat is written to
        return True

    def _rows_arrived(self, number: int, gradient: Tensor | None) -> bool:
        """Leave a table's gradient as it is; say that there is none for a bucket."""
        assert gradient is not None
        self._sparse[number] = gradient, gradient._version  # noqa: SLF001
        self._arrived[number] = True
        return False

    def take(self, number: int, gradient: Tensor) -> None:
        if number in self._tables and is_rows(gradient):
            self._parameters[number].grad = gradient
            self._rows_arrived(number, gradient)
            return
        view = self.slot.views[number]
        self._parameters[number].grad = view.copy_(gradient)
        self._arrived[number] = True
        self._seen[self._flat_of[number]] = view._version  # noqa: SLF001

    def begin_backward(self) -> None:
        for number, (gradient, _) in self._sparse.items():
            self._parameters[number].grad = gradient

    def backward_finished(self, *, may_lack: bool = False) -> None:  # noqa: ARG002 - known since the gradients came
        for number, (gradient, _) in self._sparse.items():
            self._sparse[number] = gradient, gradient._version  # noqa: SLF001
            self._rows[number] = Rows.of(gradient)
            if number not in self._kept_sparse:
                self._parameters[number].grad = view = self.slot.views[number]
                self._rows[number].fill(view)
        self._versions = self.slot.versions()

    def check_untouched(self) -> None:
        same = all(
            parameter.grad is (view if arrived or not is_copied else None) or number in self._sparse
            for number, (parameter, view, arrived, is_copied) in enumerate(
                zip(self._parameters, self.slot.views, self._arrived, self._copied, strict=True)
            )
        )
        for number, (gradient, version) in self._sparse.items():
            shown = gradient if number in self._kept_sparse else self.slot.views[number]
            same = same and self._parameters[number].grad is shown and gradient._version == version  # noqa: SLF001
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
        for number, (view, arrived, is_copied) in enumerate(
            zip(self.slot.views, self._arrived, self._copied, strict=True)
        ):
            if number in self._tables and not arrived:
                self._rows[number] = Rows.none(view, view.dtype)
            elif is_copied and not arrived:
                view.zero_()
        return self._rows
