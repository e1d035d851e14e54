"""The steps of an epoch whose order is planned: of a data set with a length."""

from __future__ import annotations

from typing import Any

from samebits.protocol.layout.cut import Cut
from samebits.protocol.skipped_steps import NONE, SkippedSteps
from samebits.rank.data.loader import Batches, PreparedLoader, StepPlan
from samebits.rank.data.order import EpochPlan
from samebits.rank.data.uses import Uses, sum_of_hashes


class PlannedSteps:
    """The steps of an epoch that are left.

    Args:
        first_step: the run's number of the epoch's first step.
        done: how many steps a loaded state has behind it; nothing of them is fetched.
        skipped: steps that are passed over, by the run's numbers; nothing of them is fetched either.
    """

    saved = None

    def __init__(
        self, loader: PreparedLoader, plan: EpochPlan, first_step: int, done: int, skipped: SkippedSteps = NONE
    ) -> None:
        self.done, self.length = done, len(plan.steps)
        self._loader, self._plan, self._first, self._counted = loader, plan, done, 0
        self._uses = Uses(len(loader.dataset))  # type: ignore[arg-type]
        self._skipped = [step - first_step for step in skipped.between(first_step, first_step + self.length - 1)]
        left = EpochPlan(plan.steps[done:], plan.batch_size)
        self._steps = loader.cut(left, first_step + done)
        left_out = [number - done for number in self._skipped if number >= done]
        self._batches = loader.fetch(loader.parts(left, self._steps, left_out), evaluation=False)

    @property
    def is_over(self) -> bool:
        return self.done == self.length

    @property
    def order(self) -> str:
        return self._plan.digest

    def take(self) -> tuple[StepPlan, Batches]:
        """The next step, of which there must be one, and where its batches come from."""
        self.done += 1
        return self._steps[self.done - self._first - 1], self._batches

    def pass_over(self) -> None:
        """Leave the next step out, which is one of `skipped`."""
        self.done += 1

    @property
    def own_order(self) -> dict[str, Any] | None:
        """`EpochPlan.packed`."""
        return self._plan.packed

    @property
    def num_samples(self) -> int:
        return self._plan.num_samples

    @property
    def num_skipped(self) -> int:
        """The samples of the steps so far that were passed over."""
        return sum(len(self._plan.steps[number]) for number in self._skipped if number < self.done)

    @property
    def whole(self) -> list[int]:
        """How many samples the epoch has, and the sum of their hashes: what all ranks together must have used, or passed over."""
        return [self.num_samples, sum_of_hashes(self._plan.between(0, self._plan.batch_size, self.length))]

    @property
    def mine(self) -> list[int]:
        """The same for this rank's lanes; steps from before a resume count as if this rank had made them."""
        context = self._loader.context
        bounds = Cut(self._plan.batch_size, context.num_lanes).bounds
        mine = self._plan.between(bounds[context.lanes.start], bounds[context.lanes.stop], self.done)
        return [len(mine), sum_of_hashes(mine)]

    def account(self) -> dict[str, Any]:
        """Which samples the steps so far have used. It is the same on every rank."""
        skipped = frozenset(self._skipped)
        steps = range(self._counted, self.done) if skipped else ()
        self._uses.add(
            (self._plan.steps[number] for number in steps if number not in skipped)
            if skipped
            else self._plan.steps[self._counted : self.done]
        )
        self._counted = self.done
        return {
            "steps": self.done,
            "of_steps": self.length,
            "samples": self._uses.samples,
            "different": self._uses.distinct,
            "of_samples": len(self._loader.dataset),  # type: ignore[arg-type]
            "order": self.order,
        }
