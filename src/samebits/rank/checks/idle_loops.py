"""Loops that train nothing, or something else than was meant: without run.backward, optimizer.step(), zero_grad() or train().

All of them are legal, so they are told, once, and refuse nothing. That gradients were never reset shows in one parameter of
the first optimizer: between two updates, each pass began with the very gradient that the pass before it had left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.rank.checks.unprepared_optimizers import Mark, mark

NO_BACKWARD = (
    "no lane called run.backward, so nothing was trained. Call run.backward(loss) for every batch of a step, or iterate the "
    "loader itself to evaluate."
)
NO_STEP = (
    "optimizer.step() was not called, so no prepared optimizer has changed the weights. Call it after the step's lanes."
)
NO_GRADIENT = (
    "run.backward gave no prepared parameter a gradient, so nothing was trained. Call it on a loss of the prepared model, without "
    "detach(), item() or torch.no_grad() between them."
)
NOT_ZEROED = (
    "gradients of earlier steps were added to: zero_grad() was not called between two updates. Call optimizer.zero_grad() "
    "after optimizer.step(), unless that is meant."
)

IN_EVAL_MODE = (
    "all steps were trained in eval mode: dropout is off, and BatchNorm keeps its averages. Call model.train() before the loop, "
    "unless that is meant."
)
ONLY_IN_TRAINING = (
    nn.Dropout,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
)


def empty_lanes(sizes: Sequence[int], num_ranks: int) -> str:
    """What to say of a step with lanes of these sizes, some of them 0."""
    samples, empty = sum(sizes), sizes.count(0)
    fix = f"Make it larger, or set lanes={samples}." if samples >= num_ranks else "Make it larger."
    return (
        f"a step has {samples} sample{'s' if samples > 1 else ''} for {len(sizes)} lanes, so {empty} stay{'s' if empty == 1 else ''} "
        f"empty: batch_size is of all ranks and lanes together. {fix}"
    )


@dataclass
class Updates:
    """What the loop has done so far to train. Costs a comparison for each pass until the second update."""

    steps: int = 0
    """Steps that have begun."""
    count: int = 0
    """Updates of prepared optimizers."""
    has_gradient: bool = False
    """Whether a prepared parameter ever had one."""
    is_told: bool = False
    """Whether `missing` was asked after a step."""
    _first: Optimizer | None = None
    _watched: Tensor | None = None
    _left: Mark = None
    """The gradient of `_watched` as the last pass or update left it."""
    _passes: int = 0
    """Passes that have begun since the first update."""
    _in_eval_mode: bool | None = None
    """Whether no pass so far found a model that trains, where that makes a difference; None: before the first."""
    _was_reset: bool = False
    _is_judged: bool = False

    def begin_pass(self) -> None:
        """A pass is about to add to the gradients."""
        if self._watched is not None:
            self._passes += 1
            now = mark(self._watched)
            self._was_reset |= now is None or now != self._left

    def end_pass(self, models: Sequence[nn.Module]) -> None:
        """The gradients of all prepared models are complete."""
        self.has_gradient = self.has_gradient or any(
            one.grad is not None for model in models for one in model.parameters()
        )
        if self._in_eval_mode is not False:
            parts = [one for model in models for one in model.modules()]
            has_difference = any(isinstance(one, ONLY_IN_TRAINING) for one in parts)
            self._in_eval_mode = has_difference and not any(one.training for one in parts)
        if self._watched is not None:
            self._left = mark(self._watched)

    def before_update(self, optimizer: Optimizer) -> bool:
        """A prepared optimizer is about to step; whether its gradients contain those of its update before, the first time."""
        self.count += 1
        if self._is_judged or self._first not in (None, optimizer):
            return False
        if self._passes:
            is_kept = not self._was_reset
            self._is_judged, self._first, self._watched = True, None, None
            return is_kept
        owned = (one for group in optimizer.param_groups for one in group["params"] if one.grad is not None)
        self._watched = next(owned, None)
        if self._watched is not None:
            self._first, self._left = optimizer, mark(self._watched)
        return False

    def missing(self, *, has_loss: bool, has_optimizer: bool) -> str:
        """What to say behind the first epoch; empty where there is nothing to say, and whenever asked again."""
        if self.is_told or not self.steps:
            return ""
        self.is_told = True
        if not has_loss:
            return NO_BACKWARD
        if not self.has_gradient:
            return NO_GRADIENT
        if has_optimizer and not self.count:
            return NO_STEP
        return IN_EVAL_MODE if self._in_eval_mode else ""
