"""What an Accelerator does inside a step: nothing before the last batch, or one sentence; and what it gathers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import accelerate
import torch
from accelerate.utils import gather_object, recursively_apply

from samebits.errors import UsageError
from samebits.integrations.accelerate.arguments import refuse_no_sync
from samebits.integrations.accelerate.loader import LaneLoader, rows_of
from samebits.integrations.lane_loop import LaneLoop
from samebits.rank.run.run import Run


class OnlyLogged(torch.autograd.Function):
    """The same numbers, of which nothing may be computed that has a backward."""

    @staticmethod
    def forward(ctx: Any, number: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's signature
        return number.view_as(number)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # noqa: ARG004 - torch's signature
        raise UsageError(
            "What accelerator.gather returned before the backward of a batch was used in a loss: which rows it has would depend on "
            "the number of processes.",
            "Compute the loss from the batch alone; a loss that compares samples of all batches is step.backward(over_batch=) in "
            "samebits's own loop.",
        )


def _of_state(name: str) -> Any:
    """A property that says which of the real processes this is; the loop notes that the script asked."""

    def read(self: StepwiseAccelerator) -> Any:
        self.loop.states.note_who()
        return getattr(self.state, name)

    return property(read, doc=f"`accelerator.state.{name}`: of the real processes.")


class StepwiseAccelerator(accelerate.Accelerator):
    """Accelerate's, whose calls know of steps and lanes; `Accelerator` makes the run and prepares."""

    run: Run
    loop: LaneLoop
    counts_local_batches: bool

    process_index = _of_state("process_index")
    local_process_index = _of_state("local_process_index")
    is_main_process = _of_state("is_main_process")
    is_local_main_process = _of_state("is_local_main_process")
    is_last_process = _of_state("is_last_process")

    def wait_for_everyone(self) -> None:
        """As Accelerate's; outside of the loop over batches a state that one process has asked for is written by all."""
        self.loop.require_left_well()
        self.loop.states.agree_outside()
        super().wait_for_everyone()

    @property
    def sync_gradients(self) -> bool:
        """Whether the batch that the loop is at is the last of this process in a step."""
        self.loop.knows_steps = True
        return bool(self.gradient_state.sync_gradients)

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.gradient_state._set_sync_gradients(value)

    @property
    def completed_steps(self) -> int:
        """Steps of the run so far; what a script counts itself begins anew after the loss of a process, and this does not."""
        self.loop.knows_steps = True
        return self.loop.step

    @property
    def step_loss(self) -> float:
        """The mean loss of the step over all its batches, the same bits on any number of processes: what is to be logged.

        Raises:
            UsageError: before the backward of a step's last batch.
        """
        return self.loop.loss

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:  # noqa: ARG002 - gradients of all are lanes
        """As Accelerate's: the loader knows which batch is the last of a step."""
        yield

    def no_sync(self, model: Any) -> Any:  # noqa: ARG002
        """Refused in scripts: which gradients stay on a process would depend on their number; so does what is built on it (LocalSGD).

        Raises:
            UsageError: always, but inside the Trainer's loop.
        """
        if self.counts_local_batches:
            return nullcontext()
        return refuse_no_sync()

    def set_trigger(self) -> None:
        """As Accelerate's, between epochs.

        Raises:
            UsageError: inside a loop over batches.
        """
        self._refuse_trigger("set_trigger")
        super().set_trigger()

    def check_trigger(self) -> bool:
        """As Accelerate's, between epochs.

        Raises:
            UsageError: inside a loop over batches.
        """
        self._refuse_trigger("check_trigger")
        return bool(super().check_trigger())

    def _refuse_trigger(self, call: str) -> None:
        if self.loop.in_step:
            raise UsageError(
                f"{call} inside the loop over batches decides by the batches that a process has, which depend on their number.",
                "Decide behind the loop, by numbers of all processes: accelerator.gather_for_metrics of an evaluation.",
            )

    @contextmanager
    def join_uneven_inputs(self, joinables: Any, even_batches: bool | None = None) -> Iterator[None]:  # noqa: ARG002
        """Every process has equally many batches."""
        yield

    def _do_sync(self) -> None:
        """The loader says when."""

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the gradient of the whole step; before the last batch of a step it does nothing, and gives 0."""
        if self.loop.in_lane:
            return torch.zeros((), device=self.device)
        self.unscale_gradients()
        norm = self.run.clip_grad_norm_(parameters, max_norm, norm_type)
        return torch.tensor(float(norm), device=self.device)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """As Accelerate's; before the last batch of a step it does nothing."""
        if not self.loop.in_lane:
            super().clip_grad_value_(parameters, clip_value)

    def gather(self, tensor: Any) -> Any:
        """As Accelerate's, over the real processes; of a batch inside a step its own rows, without an exchange.

        Raises:
            UsageError: before the backward of a batch, for anything but a loss that is to be logged.
        """
        if not self._is_at_batch:
            return super().gather(tensor)
        return self._of_batch("gather", tensor, lambda one: one if one.dim() else one[None])

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """As Accelerate's, over the real processes; of a batch inside a step its own, without an exchange.

        Raises:
            UsageError: before the backward of a batch, for anything but the mean of a loss that is to be logged.
        """
        if not self._is_at_batch:
            return super().reduce(tensor, reduction, scale)
        if reduction != "mean":
            self._refuse_exchange("reduce")
        return self._of_batch("reduce", tensor, lambda one: one * scale)

    def pad_across_processes(self, tensor: Any, *args: Any, **named: Any) -> Any:
        """As Accelerate's; of a batch inside a step itself, whose rows `gather` returns alone."""
        return tensor if self._is_at_batch else super().pad_across_processes(tensor, *args, **named)

    @property
    def _is_at_batch(self) -> bool:
        """Whether another process may be at another batch, or have none."""
        return self.loop.in_lane and not self.counts_local_batches

    def _of_batch(self, call: str, tensor: Any, form: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        def own(one: torch.Tensor) -> torch.Tensor:
            if not self.loop.is_before_backward:
                return form(one.detach())
            if not one.requires_grad:
                self._refuse_exchange(call)
            with torch.enable_grad():
                logged: torch.Tensor = OnlyLogged.apply(form(one.detach()).requires_grad_())  # type: ignore[no-untyped-call]
            return logged

        return recursively_apply(own, tensor, error_on_other_type=True)

    def _refuse_exchange(self, call: str) -> None:
        if self.loop.is_before_backward:
            raise UsageError(
                f"{call} was called before the backward of a batch: what the other processes have there depends on their number.",
                "Compute the loss from the batch alone, as its mean: the step's gradient is the mean over all batches. What is logged, "
                "gather behind the backward; around a loop that evaluates write model.eval() or torch.no_grad().",
            )

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As Accelerate's, in the order of the data set, each sample once."""
        if not use_gather_object:
            try:
                recursively_apply(lambda one: one, input_data, error_on_other_type=True)
            except TypeError:
                use_gather_object = True
        if self._is_at_batch:
            return input_data if use_gather_object else self.gather(input_data)
        gathered = gather_object(input_data) if use_gather_object else self.gather(input_data)
        loader = self.gradient_state.active_dataloader
        rows = loader.rows_left if isinstance(loader, LaneLoader) else None
        return gathered if rows is None else rows_of(gathered, rows)
