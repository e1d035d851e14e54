"""`Accelerator`: Accelerate's, with each batch as a lane."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import AcceleratorState
from torch.optim.lr_scheduler import ReduceLROnPlateau

import samebits
from samebits.errors import UsageError
from samebits.integrations.accelerate.arguments import (
    FORMS,
    accumulation_of,
    check_lanes,
    naming_set_seed,
    refuse,
    refuse_no_sync,
    script_seed,
    usual_lanes,
    world_size,
)
from samebits.integrations.accelerate.checkpoints import (
    STATE,
    CheckpointNumber,
    check_skip,
    newest,
    place_of,
    require_own,
)
from samebits.integrations.accelerate.exchanges import listen
from samebits.integrations.accelerate.loader import LaneLoader
from samebits.integrations.accelerate.stepwise import StepwiseAccelerator
from samebits.integrations.lane_loop import LaneLoop, refuse_another, require_present
from samebits.notices import say
from samebits.rank.caller import where
from samebits.rank.run.start import is_present
from samebits.rank.strategy.contract import name_forms


class ScaledGradient(torch.autograd.Function):
    """The same number, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, number: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        ctx.factor = factor
        return number.view_as(number)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.factor, None


class LaneOptimizer(AcceleratedOptimizer):
    """Accelerate's, which steps in the last of this process's batches; there the gradient is the sum over all lanes."""

    def __init__(self, optimizer: torch.optim.Optimizer, loop: LaneLoop, scaler: Any) -> None:
        self._loop = loop
        # The model was moved before the optimizer had any state.
        super().__init__(optimizer, device_placement=False, scaler=scaler)

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            raise UsageError(
                "optimizer.step(closure) would compute a process's last batch again, not all of the step.",
                "Use an optimizer without a closure, or samebits's own loop.",
            )
        if self._loop.note_update(self):
            with self._loop.rates.own():
                super().step()

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        if self._loop.in_lane:
            self._loop.earlier.forget(self.optimizer)
        else:
            super().zero_grad(set_to_none)


class LaneScheduler(AcceleratedScheduler):
    """Accelerate's, which steps as often for an update as there would be processes."""

    def __init__(
        self, scheduler: Any, optimizers: Any, of: Accelerator, *, step_with_optimizer: bool, split_batches: bool
    ) -> None:
        super().__init__(scheduler, optimizers, step_with_optimizer, split_batches)
        self._of, self._processes = of, of.logical_processes

    def step(self, *args: Any, **named: Any) -> None:
        with self._of.loop.rates.own():
            if isinstance(self.scheduler, ReduceLROnPlateau):
                self._step_by(*args, **named)
            else:
                self._step(*args, **named)

    def _step_by(self, metrics: Any, *args: Any, **named: Any) -> None:
        """Once for each number of an evaluation, which all processes have. Collective, where a step is over."""
        if not self.gradient_state.sync_gradients:
            return
        run = self._of.run._run
        if len(set(run.components.transport.all_gather_object(float(metrics), "ReduceLROnPlateau", where()))) > 1:
            raise UsageError(
                "ReduceLROnPlateau.step was given another number on each process, so learning rates would differ.",
                "Give it the mean of what accelerator.gather_for_metrics returns in an evaluation, or accelerator.step_loss.",
            )
        self.scheduler.step(metrics, *args, **named)

    def _step(self, *args: Any, **named: Any) -> None:
        if not self.step_with_optimizer or self.split_batches:
            super().step(*args, **named)
            return
        if not self.gradient_state.sync_gradients or any(one.step_was_skipped for one in self.optimizers):
            return
        for _ in range(self._processes):
            total = getattr(self.scheduler, "total_steps", None)
            if total is None or self.scheduler._step_count <= total:
                self.scheduler.step(*args, **named)


class Accelerator(StepwiseAccelerator):
    """Accelerate's Accelerator, with the same bits on any number of processes.

    Each batch is a lane: an optimizer's step takes `lanes` of them, wherever they are computed, with random streams of
    their own, and adds their gradients in a fixed order. The script behaves as it would with Accelerate's own class on
    `num_processes` = lanes / `gradient_accumulation_steps` processes: in the length of its loaders, in its schedulers
    and in `accelerator.num_processes`. The real processes must divide the lanes.

    Args:
        args: as Accelerate's, see there.
        lanes: batches of an optimizer's step; `--lanes` of the command line beats it. By default as many as are needed for
            4 processes, or for all where there are more.
        seed: of every random stream; by default what `set_seed` was given before the first `prepare`, on process 0.
        named: as Accelerate's.

    Raises:
        UsageError: for what cannot be exact (DeepSpeed, FSDP, Megatron-LM, communication hooks), and for lanes that
            accumulation or processes do not divide.
    """

    def __init__(self, *args: Any, lanes: int | None = None, seed: int | None = None, **named: Any) -> None:
        given = inspect.signature(accelerate.Accelerator.__init__).bind(self, *args, **named).arguments
        refuse(given)
        refuse_another()
        accumulation = accumulation_of(given)
        usual = usual_lanes(accumulation)
        self._seed_is_given, self._seeds_differ, early_group = seed is not None, False, None
        if world_size() > 1 and torch.distributed.is_initialized() and not is_present():
            # Of TrainingArguments, which meet too early; nothing has been exchanged in it. [Note: kept until all have met again]
            # Others may still be connecting to this process in it, and fail when it closes their connections.
            early_group = torch.distributed.group.WORLD
            torch.distributed.destroy_process_group()
        device = "cpu" if given.get("cpu") or os.environ.get("ACCELERATE_USE_CPU") == "true" else None
        listen()
        with naming_set_seed("set_seed was called before Accelerator()" if seed is None else "", "`seed`"):
            self.run = samebits.init(
                seed=seed if seed is not None else script_seed(), lanes=lanes or usual, device=device
            )
        del early_group
        is_whole = self.run._run.config.purpose.is_plain and self.run.num_lanes == 1
        # `verify` computes a step in one lane to compare it with those over lanes: its samples stay the same.
        self.batches_per_step = (lanes or usual) if is_whole else self.run.num_lanes
        """As many as the lanes."""
        if self.run.device.type == "cpu":
            # Without it Accelerate looks for a GPU, and takes every process for a lone one.
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")
        check_lanes(self.run, self.batches_per_step, accumulation)
        self.loop = LaneLoop(self.run, self._set_sync, lambda: self._optimizers)
        name_forms(*FORMS)
        self.counts_local_batches = False
        """Whether lengths and accumulation count the batches of this process: for the Trainer's own loop."""
        self.weight: int | None = None
        """Of how many items the loss of the open batch is a mean; None: of its samples."""
        self.only_evaluates = False
        """Whether loaders that are prepared now are for evaluation: the run need not know them."""
        self._collected: list[Any] | None = None
        self._trained: list[Any] = []
        """The models that the run has; others were prepared for evaluation only."""
        self._loaded: tuple[int, int] | None = None
        if not torch.distributed.is_initialized():
            # An earlier run of this process has ended, and its group with it.
            AcceleratorState._reset_state(reset_partial_state=True)
        super().__init__(*args, **named)
        self._accumulation = accumulation

    @property
    def num_processes(self) -> int:
        """As many processes as the script stands for: lanes / gradient_accumulation_steps. `state.num_processes` are real."""
        if self.counts_local_batches:
            # The Trainer multiplies the loss of a batch by it, against a mean over processes. Lanes are added otherwise.
            return 1 if self.loop.in_lane else int(self.state.num_processes)
        return self.logical_processes

    @property
    def logical_processes(self) -> int:
        """The number of processes on which Accelerate's own class would take the same batches for a step."""
        return self.batches_per_step // self.gradient_state.num_steps

    @property
    def local_batches(self) -> int:
        """The number of batches that this process gets for a step."""
        return self.run.num_lanes // int(self.state.num_processes)

    def is_training(self) -> bool:
        """Whether a loop over a prepared loader that begins now trains: a prepared model is in training mode, with gradients."""
        return torch.is_grad_enabled() and any(model.training for model in self._models)

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        """As Accelerate's. Collective: call it on every process, with the same objects."""
        if self._collected is not None:
            return super().prepare(*args, device_placement=device_placement)
        with self._taking():
            return super().prepare(*args, device_placement=device_placement)

    @contextmanager
    def _taking(self) -> Iterator[list[Any]]:
        """Collect what is prepared, and give it to the run together."""
        if self._collected is not None:
            yield self._collected
            return
        require_present(self.run)
        self._adopt_seed()
        new: list[Any] = []
        self._collected = new
        try:
            yield new
        finally:
            self._collected = None
        if new:
            if not self.run._run.loop_state.prepared.taken:
                number = CheckpointNumber(self.project_configuration, self.run)
                self.loop.states.before_each = number.agree
                self.run.track(checkpoints=number)
            things = [one.for_training() if isinstance(one, LaneLoader) else one for one in new]
            with naming_set_seed("set_seed was called" if self._seeds_differ else ""):
                prepared = self.run.prepare(*things)
            for one, made in zip(new, prepared if len(new) > 1 else [prepared], strict=True):
                if isinstance(one, LaneLoader):
                    one.prepared = made

    def register_for_checkpointing(self, *objects: Any) -> None:
        """As Accelerate's; the objects come back after the loss of a process too, where their state is plain or tensors."""
        super().register_for_checkpointing(*objects)
        for thing in objects:
            try:
                self.run.track(**{f"registered_{len(self._custom_objects)}_{objects.index(thing)}": thing})
            except UsageError as error:
                say(f"{type(thing).__name__} begins anew after the loss of a process: {error.problem}")

    def _adopt_seed(self) -> None:
        """The seed that the script has set by now is the run's."""
        state = self.run._run
        if self._seed_is_given or state.loop_state.prepared.taken or not state.components.streams.was_seeded():
            return
        mine = torch.initial_seed() % (1 << 62)
        seeds = state.components.transport.all_gather_object(mine, "accelerator.prepare", where())
        self._seeds_differ = len(set(seeds)) > 1
        # Before anything is prepared, nothing has used the one of `init`.
        state.components.streams.seed = seeds[0]

    def prepare_model(self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        if getattr(model, "_is_accelerate_prepared", False):
            if not evaluation_mode and not any(model is one for one in self._trained):
                with self._taking() as new:
                    self._trained.append(model)
                    new.append(model)
            return super().prepare_model(model, device_placement=device_placement, evaluation_mode=evaluation_mode)
        with self._taking() as new:
            # In evaluation mode it does all but wrap the model for several processes.
            prepared = super().prepare_model(model, device_placement=device_placement, evaluation_mode=True)
            if not evaluation_mode:
                prepared.no_sync = refuse_no_sync  # which the wrapper of several processes would have
                self._trained.append(prepared)
                new.append(prepared)
            return prepared

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:  # noqa: ARG002 - the model decides
        if getattr(optimizer, "_is_accelerate_prepared", False):
            return super().prepare_optimizer(optimizer)
        with self._taking() as new:
            prepared = LaneOptimizer(optimizer, self.loop, self.scaler)
            self._optimizers.append(prepared)
            new.append(optimizer)
            return prepared

    def prepare_scheduler(self, scheduler: Any) -> Any:
        if getattr(scheduler, "_is_accelerate_prepared", False):
            return super().prepare_scheduler(scheduler)
        with self._taking() as new:
            own = [one for one in self._optimizers if getattr(scheduler, "optimizer", None) is one.optimizer]
            prepared = LaneScheduler(
                scheduler,
                own or self._optimizers,
                self,
                step_with_optimizer=self.step_scheduler_with_optimizer,
                split_batches=self.split_batches,
            )
            self._schedulers.append(prepared)
            new.append(scheduler)
            return prepared

    def prepare_data_loader(
        self,
        data_loader: Any,
        device_placement: Any = None,  # noqa: ARG002 - batches are put where the lanes are computed
        slice_fn_for_dispatch: Any = None,  # noqa: ARG002 - nothing is dispatched
    ) -> Any:
        if isinstance(data_loader, LaneLoader):
            return data_loader
        if self.dispatch_batches:
            raise UsageError(
                "dispatch_batches=True lets process 0 read for all, and lanes are read by the process that computes them.",
                "Leave it out.",
            )
        with self._taking() as new:
            loader = LaneLoader(self, data_loader)
            if not self.only_evaluates:
                new.append(loader)
            return loader

    def _set_sync(self, is_last: bool) -> None:
        self.gradient_state._set_sync_gradients(is_last)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """The backward of a batch's loss, its mean over samples; the gradient of a step is the mean over its lanes.

        Args:
            loss: a scalar.
            kwargs: `retain_graph`, where a second call for the same batch follows.

        Raises:
            UsageError: outside a loop over a prepared loader.
        """
        retain_graph = bool(kwargs.pop("retain_graph", False))
        if kwargs:
            raise UsageError(f"backward got {', '.join(kwargs)}, and knows retain_graph= only.", "Leave it out.")
        self.loop.backward(self._with_scaled_gradient(loss), self.weight, retain_graph=retain_graph)

    def _with_scaled_gradient(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss itself, so that the run reports what it is; its gradient has the scaler's factor."""
        if self.scaler is None:
            return loss
        factor = self.scaler.scale(torch.ones((), device=loss.device))
        scaled: torch.Tensor = ScaledGradient.apply(loss.float() if loss.itemsize < 4 else loss, factor)  # type: ignore[no-untyped-call]
        return scaled

    def save_state(self, output_dir: str | None = None, safe_serialization: bool = True, **more: Any) -> Any:
        """As Accelerate's, and samebits's own state beside it, from which `load_state` resumes on any number of processes.

        Inside an epoch samebits's part is written when the step is over.

        Raises:
            UsageError: inside a step, where some of its batches are computed and others are not.
        """
        if self.loop.in_lane:
            raise UsageError(
                "save_state was called inside a step, where processes are at different batches.",
                "Call it where accelerator.sync_gradients is true, behind optimizer.step().",
            )
        self.loop.require_whole_steps()
        if self.loop.skips_epoch:
            return output_dir
        place = super().save_state(output_dir, safe_serialization, **more)
        self.loop.states.ask(Path(place) / STATE)
        return place

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """As Accelerate's; not behind an epoch that was done before this start, whose file is there."""
        self.loop.require_whole_steps()
        if not self.loop.skips_epoch:
            super().save(obj, f, safe_serialization)

    def save_model(self, model: Any, save_directory: Any, *args: Any, **named: Any) -> None:
        """As Accelerate's; not behind an epoch that was done before this start, whose file is there."""
        self.loop.require_whole_steps()
        if not self.loop.skips_epoch:
            super().save_model(model, save_directory, *args, **named)

    def unwrap_model(self, model: Any, *args: Any, **named: Any) -> Any:
        """As Accelerate's."""
        self.loop.require_left_well()
        return super().unwrap_model(model, *args, **named)

    def load_state(self, input_dir: str | None = None, load_kwargs: Any = None, **more: Any) -> None:
        """As Accelerate's; of a state of this class, on any number of processes, in the middle of an epoch too.

        Raises:
            UsageError: for a state of Accelerate's own class.
        """
        self.loop.states.agree_outside()
        folder = Path(input_dir) if input_dir is not None else newest(str(self.project_dir))
        require_own(folder, "Accelerator")
        super().load_state(str(folder), load_kwargs, **more)
        self.load_samebits(folder)

    def load_samebits(self, folder: Path) -> None:
        """Load samebits's part of a checkpoint."""
        self.run.load_state(folder / STATE)
        self._loaded = place_of(self.run)
        self.loop.let_script_skip()

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """The loader: after `load_state` it resumes by itself where the state was saved.

        Raises:
            UsageError: when the script counts otherwise than the state, or nothing was loaded.
        """
        if not isinstance(dataloader, LaneLoader):
            return super().skip_first_batches(dataloader, num_batches)
        check_skip(self._loaded, num_batches, self._accumulation)
        return dataloader
