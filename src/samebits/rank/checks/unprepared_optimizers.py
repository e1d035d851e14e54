"""Optimizers that `run.prepare` did not take: they must not step what got a gradient inside lanes.

A lane sees its own samples, and a rank its own lanes. The gradient of a tensor that belongs to nothing prepared is
added up over the lanes of one rank and never reduced, so a class centre or a temperature with its own optimizer learns
different values on different numbers of ranks. The constructor shows that an optimizer exists; comparing gradients
before and after each lane shows whether lanes gave its tensors any, which costs nothing without such an optimizer.
One that was made before `samebits.init` is known from its first `zero_grad` or `step` outside lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from samebits.errors import UsageError
from samebits.rank.position.moment import LoopPosition, Region
from samebits.rank.strategy.contract import RIGHT_FORM, misplaced

_grad = attrgetter("grad")

Mark = tuple[int, int] | None
"""Identity and version of a gradient."""


class UnpreparedOptimizers:
    """Watches every optimizer of the process until `close`.

    Args:
        position: where the script is.
        models: the prepared ones; the list grows. Their gradients are reduced, whichever optimizer steps them.
        when_grown: called when one that `prepare` took has got another group.
    """

    def __init__(
        self, position: LoopPosition, models: Sequence[nn.Module], when_grown: Callable[[], None] = lambda: None
    ) -> None:
        self._position, self._models, self._when_grown = position, models, when_grown
        self._taken: WeakSet[Optimizer] = WeakSet()
        """Taken by `prepare`."""
        self._unknown: WeakSet[Optimizer] = WeakSet()
        """Not taken by `prepare`."""
        self._had_lanes = False
        self._of_lane: WeakSet[Optimizer] = WeakSet()
        """Made in the current lane, such as one of an inner loop over a copy: there it may step what it likes."""
        self._watched: list[Tensor] = []
        """What those have that are not taken, while a lane is open; parameters of prepared models are among them."""
        self._before: list[Mark] = []
        """The marks of their gradients when the lane began."""
        self._fed: dict[int, tuple[Tensor, int]] = {}
        """Tensors whose gradient is, or contains, that of lanes; with the gradient's identity."""
        self._undo = _hook_all(
            {
                "__init__": self._made,
                "__setstate__": self._restored,
                "zero_grad": self._zeroed,
                "add_param_group": self._grown,
            }
        )
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def take(self, optimizer: Optimizer) -> None:
        """Leave its steps to the strategy: `prepare` has checked it."""
        self._unknown.discard(optimizer)
        self._taken.add(optimizer)

    def begin_lane(self) -> None:
        """Begin a lane, or an evaluation of one rank's share: what happens to gradients from here on happens in it."""
        self._had_lanes = True
        if self._unknown:
            self._watched = list(chain.from_iterable(map(_listed, self._unknown)))
            self._before = _marks(self._watched)

    def end_lane(self) -> None:
        """End the lane, also when it was left early."""
        if self._watched:
            self._feed()
        self._watched, self._before = [], []
        if self._of_lane:
            self._unknown.update(self._of_lane)
            self._of_lane.clear()

    def _feed(self) -> None:
        """Note which of the watched tensors got a gradient in the lane. Nearly always none did."""
        marks = _marks(self._watched)
        if marks == self._before:
            return
        # Only now, because it walks over all parameters.
        prepared = self._prepared()
        for tensor, before, now in zip(self._watched, self._before, marks, strict=True):
            if now is not None and now != before and id(tensor) not in prepared:
                self._fed[id(tensor)] = tensor, now[0]

    def close(self) -> None:
        """Restore torch's optimizers."""
        self._hook.remove()
        self._undo()

    def _made(self, optimizer: Optimizer) -> None:
        (self._of_lane if self._position.in_lane else self._unknown).add(optimizer)

    def _restored(self, optimizer: Optimizer) -> None:
        # A copy has no `__init__`. One whose state was loaded after lanes stays as unknown as it was.
        if optimizer not in self._taken and (self._position.in_lane or not self._had_lanes):
            self._made(optimizer)

    def _zeroed(self, optimizer: Optimizer) -> None:
        if optimizer not in self._taken and not self._position.in_lane:
            # One that was made before `init` is known from here on: it has no gradient of lanes now.
            self._unknown.add(optimizer)
        if self._fed:
            for tensor in chain.from_iterable(group["params"] for group in optimizer.param_groups):
                self._fed.pop(id(tensor), None)

    def _grown(self, optimizer: Optimizer) -> None:
        if optimizer in self._taken:
            self._when_grown()

    def _foreign(self, optimizer: Optimizer) -> list[Tensor]:
        """The tensors that it updates and no prepared model has."""
        prepared = self._prepared()
        return [tensor for tensor in _listed(optimizer) if id(tensor) not in prepared]

    def _prepared(self) -> set[int]:
        return {id(parameter) for model in self._models for parameter in model.parameters()}

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002 - torch's signature
        if optimizer in self._taken:
            return
        if self._position.region is Region.LANE and len(self._foreign(optimizer)) < len(list(_listed(optimizer))):
            raise misplaced(
                f"{type(optimizer).__name__}.step() was called inside a step's lanes, where the gradient of a prepared model "
                "is not complete",
                f"Pass the optimizer to run.prepare, and call step() after the lanes:\n{RIGHT_FORM}",
            )
        if optimizer in self._of_lane:
            return
        # [Note: optimizers that nobody saw]
        # Finding those made before `init` would mean to walk all objects of the script. One that
        # was neither made nor zeroed since then may hold gradients of lanes that nobody compared, so it is refused.
        is_unseen = optimizer not in self._unknown and self._had_lanes
        self._unknown.add(optimizer)
        for tensor in self._foreign(optimizer):
            if (is_unseen and tensor.grad is not None) or self._is_fed(tensor):
                raise _not_prepared(optimizer, tensor, self._position.region, is_unseen=is_unseen)

    def _is_fed(self, tensor: Tensor) -> bool:
        """Whether its gradient comes from lanes: from the current one, or from an earlier one if not replaced since."""
        if (now := mark(tensor)) is None:
            return False
        if any(tensor is one and now != mark for one, mark in zip(self._watched, self._before, strict=True)):
            return True
        return id(tensor) in self._fed and self._fed[id(tensor)][1] == now[0]


def _listed(optimizer: Optimizer) -> Iterator[Tensor]:
    """The tensors that it updates."""
    return chain.from_iterable(group["params"] for group in optimizer.param_groups)


def _marks(tensors: Sequence[Tensor]) -> list[Mark]:
    """The marks of all their gradients. About 50 ns for one that is not there."""
    gradients = list(map(_grad, tensors))
    if not any(gradient is not None for gradient in gradients):
        return gradients
    return list(map(mark, tensors))


def mark(tensor: Tensor) -> Mark:
    """Of the tensor's gradient: another one where that was replaced or written to; None where there is none."""
    # torch accumulates in place where it can, which only the version shows.
    gradient = tensor.grad
    return None if gradient is None else (id(gradient), gradient._version)  # noqa: SLF001


def _hook_all(hooks: Mapping[str, Callable[[Optimizer], None]]) -> Callable[[], None]:
    """Call each after the method of all optimizers that it stands under; return an undo."""
    undo = [_hook(name, call) for name, call in hooks.items()]

    def undo_all() -> None:
        for each in undo:
            each()

    return undo_all


def _hook(name: str, call: Callable[[Optimizer], None]) -> Callable[[], None]:
    method = getattr(Optimizer, name)
    is_active = True

    @functools.wraps(method)
    def called(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        # Somebody else's patch may keep this one alive.
        if is_active:
            call(self)
        return result

    setattr(Optimizer, name, called)

    def undo() -> None:
        nonlocal is_active
        is_active = False
        if getattr(Optimizer, name) is called:
            setattr(Optimizer, name, method)

    return undo


def _not_prepared(optimizer: Optimizer, tensor: Tensor, region: Region, *, is_unseen: bool) -> UsageError:
    name = type(optimizer).__name__
    what = f"a tensor of shape {tuple(tensor.shape)}"
    if region is Region.EVALUATION:
        return UsageError(
            f"{name}.step() inside a loop over a prepared loader trains {what} on one rank's share of the samples.",
            f"Train with `for step in run.steps(loader)`, and pass the tensor (or its module) and {name} to "
            "run.prepare.",
        )
    return UsageError(
        f"{name} updates {what} that got a gradient inside a step's lanes but was not passed to run.prepare, so its "
        "gradient covers this rank's lanes only.",
        f"Pass the tensor (or its module) and {name} to run.prepare: `run.prepare(model, centers, optimizer, ...)`."
        + (f" If no lane computes with it, make {name} after samebits.init." if is_unseen else ""),
    )
