"""The lane of a run that has one lane: its gradients are the step's, and stay where autograd made them.

There is nothing to add them to and no rank to send them to, so no slot is filled: no zeroing and no copy, as in a plain
loop, whose bits these are (including `-0.0`). Any other run has more lanes, on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, repeat
from operator import add, attrgetter, is_, le

import torch
from torch import Tensor, nn

from lockstep.machine.torch_private import multiply_each
from lockstep.rank.strategy.replica.gradient_buffers import Slot, SlotPool
from lockstep.rank.strategy.replica.lane import Lane, gradient_taken_away, gradients_touched
from lockstep.rank.strategy.replica.places import surely_apart
from lockstep.rank.strategy.replica.rows import is_rows, sum_of

_grad, _version, _layout, _nbytes = map(attrgetter, ("grad", "_version", "layout", "nbytes"))


class OnlyLane(Lane):
    """One lane between `begin_lane` and the end of its pass.

    Args:
        number: the lane's.
        parameters: the trainable ones; their `grad` is used until the pass ends.
        arrivals: gets the number of each parameter that a backward reaches, from the parameters' watcher.
        sparse: the parameters whose gradients stay sparse.
    """

    def __init__(
        self,
        number: int,
        parameters: Sequence[nn.Parameter],
        arrivals: list[int],
        sparse: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(number)
        self._sparse = sparse
        self._parameters = parameters
        self._known: Sequence[Tensor | None] = [None] * len(parameters)
        self._present: list[Tensor] = []
        self._versions: list[int] = []
        self._arrivals = arrivals
        arrivals.clear()
        for parameter in parameters:
            parameter.grad = None

    def take(self, number: int, gradient: Tensor) -> None:
        self._parameters[number].grad = gradient.to(self._parameters[number].device)
        self._arrivals.append(number)

    def backward_finished(self, *, may_lack: bool = False) -> None:
        self._look()
        if may_lack:
            self._arrivals[:] = [number for number in self._arrivals if self._known[number] is not None]
        if len(self._present) < len(set(self._arrivals)):
            raise gradient_taken_away()
        if not surely_apart(self._present) and (self._make_dense() or self._make_disjoint()):
            self._look()
        self._versions = list(map(_version, self._present))

    def _look(self) -> None:
        self._known = known = list(map(_grad, self._parameters))
        missing = any(map(is_, known, repeat(None)))
        self._present = [gradient for gradient in known if gradient is not None] if missing else known

    def _make_dense(self) -> bool:
        """Make other sparse gradients dense, as in runs with several lanes; return whether there was one."""
        if {torch.strided}.issuperset(map(_layout, self._present)):
            return False
        found = False
        for number, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if gradient is None or gradient.layout is torch.strided or (number in self._sparse and is_rows(gradient)):
                continue
            parameter.grad, found = torch.zeros_like(parameter).add_(gradient), True
        return found

    def _make_disjoint(self) -> bool:
        """Separate gradients that share memory, where the next backward would add twice; return whether any did.

        Autograd gives them one piece of memory in `(a.view(4) + b.view(4)).pow(2).sum()` with `a` and `b` of 2 x 2, in
        torch 2.13.
        """
        present = self._strided()
        starts = list(map(Tensor.data_ptr, present))
        ends = sorted(map(add, starts, map(_nbytes, present)))
        starts.sort()
        if all(map(le, ends, islice(starts, 1, None))):  # each ends before the next starts
            return False
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()
        return True

    def _strided(self) -> Sequence[Tensor]:
        """The gradients that are not sparse."""
        if not self._sparse:
            return self._present
        return [gradient for gradient in self._present if gradient.layout is torch.strided]

    def check_untouched(self) -> None:
        same = all(map(is_, map(_grad, self._parameters), self._known))
        if not same or self._versions != list(map(_version, self._present)):
            raise gradients_touched()

    def arrived(self) -> Sequence[bool]:
        return [gradient is not None for gradient in self._known]

    def slot_for_reading(self, pool: SlotPool) -> Slot:
        slot = pool.take()
        for view, gradient in zip(slot.views, self._known, strict=True):
            if gradient is not None and gradient.layout is torch.strided:
                view.copy_(gradient)
            elif gradient is not None:
                view.add_(gradient)
        return slot

    def hand_over(self, held: Sequence[Tensor | None], scale: float) -> None:
        """Set `p.grad` to what it was before the pass plus the lane's gradient times `scale`.

        Args:
            held: for each parameter, its `grad` before the pass.
            scale: exactly 1.0 multiplies nothing.
        """
        if scale != 1.0:
            multiply_each(list(self._strided()), scale)
            for one in self._present:
                if one.layout is not torch.strided:
                    one.mul_(scale)
        if all(map(is_, held, repeat(None))):
            return
        for parameter, before, gradient in zip(self._parameters, held, self._known, strict=True):
            if before is not None:
                parameter.grad = before if gradient is None else sum_of(before, gradient)
