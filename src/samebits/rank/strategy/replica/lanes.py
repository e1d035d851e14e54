"""The lane that is being computed: alone, with gradients where autograd made them, or one of several, which go into a buffer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice, repeat
from operator import add, attrgetter, is_, le

import torch
from torch import Tensor, nn

from samebits.errors import UsageError
from samebits.machine.torch_private import multiply_each
from samebits.rank.strategy.contract import behind_lanes, misplaced_backward
from samebits.rank.strategy.replica.arena import surely_apart
from samebits.rank.strategy.replica.lane_gradients import GradientBuffer, GradientBufferPool
from samebits.rank.strategy.replica.sparse_embedding import Rows, is_rows, sum_of


class Lane(ABC):
    """One lane between `begin_lane` and `end_lane`. It uses the `grad` of the trainable parameters."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.weight: float | None = None
        self.explicit = False
        self.losses: list[Tensor] = []

    def weigh(self, weight: float | None, by_samples: float) -> None:
        """Set the lane's weight, as a backward call gives it; without `weight=` it is `by_samples`.

        Raises:
            UsageError: when two calls in the lane disagree.
        """
        if self.losses and ((weight is not None) != self.explicit or (self.explicit and weight != self.weight)):
            raise UsageError(
                f"One lane called run.backward with weight={self.weight if self.explicit else None} and "
                f"weight={weight}, but a lane has one weight.",
                "Add the losses up and call run.backward once, or pass the same weight each time. Where each loss has a count of "
                "its own, write run.backward((a, b), counts=(n, m)).",
            )
        self.explicit = weight is not None
        self.weight = by_samples if weight is None else float(weight)

    def begin_backward(self) -> None:  # noqa: B027 - most have nothing to do
        """Let gradients be what a backward adds to. Call it before each."""

    @abstractmethod
    def backward_finished(self) -> None:
        """Note that whatever is written to the gradients from here on is not ours.

        Raises:
            UsageError: when a gradient that had arrived is gone.
        """

    @abstractmethod
    def take(self, number: int, gradient: Tensor) -> None:
        """Take parameter `number`'s gradient of the whole lane, computed before its place was laid out."""

    @abstractmethod
    def check_untouched(self) -> None:
        """Raise `UsageError` when the script changed or replaced gradients inside the lane."""

    @abstractmethod
    def arrived(self) -> Sequence[bool]:
        """For each parameter, whether a backward reached it."""

    @abstractmethod
    def buffer_for_reading(self, pool: GradientBufferPool) -> GradientBuffer:
        """Return the lane's gradients as a buffer of `pool`, zeros where there are none; valid until the lane ends."""


def gradients_touched() -> UsageError:
    return UsageError(
        "Gradients were changed inside a step's lanes (zero_grad, clipping or an optimizer step), where they are not "
        "complete yet.",
        behind_lanes(),
    )


def gradient_taken_away() -> UsageError:
    """The error when a gradient that arrived is gone."""
    return UsageError(
        "A hook of the script removed a parameter's gradient during backward, so it cannot be reduced.",
        "Read gradients after the step's lanes.",
    )


_grad = attrgetter("grad")
_version, _layout, _nbytes = map(attrgetter, ("_version", "layout", "nbytes"))


class OnlyLane(Lane):
    """One lane between `begin_lane` and the end of its pass.

    Args:
        parameters: the trainable ones; their `grad` is used until the pass ends.
        sparse: the parameters whose gradients stay sparse.
    """

    def __init__(self, number: int, parameters: Sequence[nn.Parameter], sparse: frozenset[int] = frozenset()) -> None:
        super().__init__(number)
        self._sparse = sparse
        self._parameters = parameters
        self._known: Sequence[Tensor | None] = [None] * len(parameters)
        self._present: list[Tensor] = []
        self._versions: list[int] = []
        set_gradients(parameters, self._known)

    def take(self, number: int, gradient: Tensor) -> None:
        self._parameters[number].grad = gradient.to(self._parameters[number].device)

    def backward_finished(self) -> None:
        self._look()
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
        """Separate gradients that share memory; return whether any did."""
        # [Note: gradients that share memory]
        # Autograd may give two parameters one gradient: in torch 2.13 `(a.view(4) + b.view(4)).pow(2).sum()` does so with `a`
        # and `b` of 2 x 2. The next backward would add to that memory twice.
        present = self._strided()
        starts = list(map(Tensor.data_ptr, present))
        ends = sorted(map(add, starts, map(_nbytes, present)))
        starts.sort()
        if all(map(le, ends, islice(starts, 1, None))):
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
            raise gradients_touched() if self.losses else misplaced_backward()

    def arrived(self) -> Sequence[bool]:
        return [gradient is not None for gradient in self._known]

    def buffer_for_reading(self, pool: GradientBufferPool) -> GradientBuffer:
        buffer = pool.take()
        for view, gradient in zip(buffer.views, self._known, strict=True):
            if gradient is not None and gradient.layout is torch.strided:
                view.copy_(gradient)
            elif gradient is not None:
                view.add_(gradient)
        return buffer

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


class BufferedLane(Lane):
    """One lane between `begin_lane` and `end_lane`.

    Args:
        pool: where the buffer comes from; its parameters' `grad` is used until the lane ends.
        arrivals: gets the number of each small parameter that a backward reaches, where that is all there is to do.
        sparse: the parameters whose `grad` stays sparse between backward calls; the script sees others whole.
    """

    def __init__(
        self, number: int, pool: GradientBufferPool, arrivals: list[int], sparse: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(number)
        self.buffer: GradientBuffer = pool.take_unfilled()
        self._parameters: Sequence[nn.Parameter] = pool.parameters
        self._kept_sparse, self._tables = sparse, pool.tables
        self._pool, self._flat_of, self._arrivals = pool, pool.flat_of, arrivals
        self._is_copied, self._copied = pool.is_copied, pool.copied
        self._arrived = [False] * len(self._parameters)
        self._expected: list[Tensor | None] = [*self.buffer.views]
        """What each parameter's `grad` must be."""
        # Autograd makes a large gradient itself where there is none yet; `gradient_arrived` then moves it into its view.
        for copied in self._copied:
            self._expected[copied] = None
        arrivals.clear()
        set_gradients(self._parameters, self._expected)
        self._versions = self.buffer.versions()
        self._seen = [*self._versions]
        self._sparse: dict[int, tuple[Tensor, int]] = {}
        """Of tables that have nothing but rows so far: the gradient as autograd made it, and its version."""
        self._rows: dict[int, Rows] = {}
        """The same, added up when the backward ended; what has arrived in one that failed is not."""

    def gradient_arrived(self, number: int, *, may_lack: bool = False) -> bool:
        """Take parameter `number`'s new gradient. A large first one moves into its place, as if added to zeros there.

        Args:
            may_lack: whether autograd may have reached the parameter with nothing, because a later stage had nothing.

        Returns:
            Whether there is a gradient.
        """
        parameter, view, flat = self._parameters[number], self.buffer.views[number], self._flat_of[number]
        if number in self._tables and is_rows(parameter.grad):
            return self._rows_arrived(number, parameter.grad)
        # [Note: how a gradient that is missing is recognised]
        # Autograd calls the hook also where a later stage had nothing for this parameter. Then `grad` is what it was, and
        # nothing was written to the flat since it was last seen.
        if may_lack and (
            parameter.grad is None or (parameter.grad is view and view._version == self._seen[flat])  # noqa: SLF001
        ):
            return False
        # This is the first whole gradient of a table; torch has added the rows that came before to it.
        if number in self._sparse:
            del self._sparse[number]
            self._rows.pop(number, None)
            self._put(number, parameter.grad)
        elif self._is_copied[number] and not self._arrived[number]:
            self._put(number, parameter.grad)
        self._arrived[number] = True
        self._seen[flat] = view._version  # noqa: SLF001 - changes when anything in the flat is written to
        return True

    def _put(self, number: int, gradient: Tensor | None) -> None:
        """Put the first whole gradient into its place."""
        if gradient is None:
            raise gradient_taken_away()
        view = self.buffer.views[number]
        if gradient.layout is torch.strided:
            # [Note: why zero is added to a gradient]
            # A gradient that is added to zeros has no negative zeros, a copied one keeps them. Whether it is copied depends
            # on its size and on what came before, so each gets the bits of the sum.
            torch.add(gradient, 0, out=view)
        else:
            view.zero_().add_(gradient)
        self._parameters[number].grad = self._expected[number] = view

    def _rows_arrived(self, number: int, gradient: Tensor | None) -> bool:
        """Leave a table's gradient as it is; say that there is none for a bucket."""
        assert gradient is not None
        self._sparse[number] = gradient, gradient._version  # noqa: SLF001
        self._rows.pop(number, None)
        self._expected[number] = gradient
        self._arrived[number] = True
        return False

    def take(self, number: int, gradient: Tensor) -> None:
        if number in self._tables and is_rows(gradient):
            self._parameters[number].grad = gradient
            self._rows_arrived(number, gradient)
            return
        view = self.buffer.views[number]
        self._parameters[number].grad = self._expected[number] = view.copy_(gradient)
        self._arrived[number] = True
        self._seen[self._flat_of[number]] = view._version  # noqa: SLF001

    def begin_backward(self) -> None:
        for number, (gradient, _) in self._sparse.items():
            self._parameters[number].grad = gradient

    def backward_finished(self) -> None:
        for number in self._arrivals:
            self._arrived[number] = True
        self._arrivals.clear()
        for number, (gradient, _) in self._sparse.items():
            self._sparse[number] = gradient, gradient._version  # noqa: SLF001
            self._rows[number] = Rows.of(gradient)
            if number not in self._kept_sparse:
                self._parameters[number].grad = self._expected[number] = view = self.buffer.views[number]
                self._rows[number].fill(view)
        self._versions = self.buffer.versions()
        # What `fill` wrote is no gradient that arrived.
        self._seen = [*self._versions]

    def check_untouched(self) -> None:
        same = all(map(is_, map(_grad, self._parameters), self._expected)) and self._rows.keys() == self._sparse.keys()
        for gradient, version in self._sparse.values():
            same = same and gradient._version == version  # noqa: SLF001
        if not same or self._versions != self.buffer.versions():
            raise gradients_touched()

    def arrived(self) -> Sequence[bool]:
        return self._arrived

    def buffer_for_reading(self, pool: GradientBufferPool) -> GradientBuffer:  # noqa: ARG002 - it has one
        for number, rows in self._rows.items():
            if number in self._kept_sparse or not self._arrived[number]:
                rows.fill(self.buffer.views[number])
        return self.buffer

    def fill(self) -> Mapping[int, Rows]:
        """End the lane: fill the places of large parameters that got no gradient with zeros.

        Returns:
            Tables of which there are only rows, by number, those without a gradient too; their places mean nothing.
        """
        for number in () if all(self._arrived) else self._copied:
            if self._arrived[number]:
                continue
            view = self.buffer.views[number]
            if number in self._tables:
                self._rows[number] = Rows.none(view, view.dtype)
            else:
                view.zero_()
        return self._rows


def set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Set `grad` of each parameter, in few steps of Python for all."""
    deque(map(setattr, parameters, repeat("grad"), gradients), maxlen=0)
