"""`Trainer` and `Seq2SeqTrainer`: Hugging Face's, with each batch as a lane; `TrainerMixin` for others built on them (TRL's)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import trainer as theirs
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from samebits.errors import UsageError
from samebits.integrations.accelerate.accelerator import Accelerator
from samebits.integrations.accelerate.arguments import usual_lanes
from samebits.integrations.accelerate.checkpoints import STATE, require_own
from samebits.integrations.accelerate.loader import LaneLoader
from samebits.integrations.transformers.trl import refuse_trl
from samebits.rank.caller import where
from samebits.rank.run.loop.step import Step

RESUMED = "resumed by samebits"
"""In the place of a checkpoint's folder: the run resumes in the middle of an epoch, and everything is loaded already."""
PLAIN = (
    "global_step",
    "epoch",
    "best_metric",
    "best_model_checkpoint",
    "best_global_step",
    "total_flos",
    "num_input_tokens_seen",
)
"""Fields of the Trainer's state that are the same on every process."""


DECISIONS = ("should_evaluate", "should_save")
"""Of callbacks, that all processes must make together; who stops alone is met at the next step."""
TIMED = ("_runtime", "_per_second")
"""Ends of names in the Trainer's log whose values differ between processes."""


@contextmanager
def _in_place_of(name: str, value: Any) -> Iterator[None]:
    """Let the Trainer's module find another thing under a name."""
    before = getattr(theirs, name)
    setattr(theirs, name, value)
    try:
        yield
    finally:
        setattr(theirs, name, before)


class StepBatches:
    """The batches of a step: opened lane by lane as the Trainer goes through them."""

    def __init__(self, step: Step, lanes: Iterator[Any]) -> None:
        self._number, self._lanes = len(step.lanes), lanes

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Any]:
        return self._lanes


class Progress:
    """What the Trainer knows of its own progress, as part of every state of the run."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._began = trainer, 0
        self._exported: dict[str, frozenset[str]] = {}

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        trainer, state = self._trainer, self._trainer.state
        return {
            **{name: getattr(state, name) for name in PLAIN if hasattr(state, name)},
            "log_history": [
                {name: value for name, value in line.items() if not name.endswith(TIMED)} for line in state.log_history
            ],
            "callbacks": self._states(),
            "began": self._began,
            "loss": float(getattr(trainer, "_tr_loss", 0.0)),
            "logged": [
                float(getattr(trainer, "_total_loss_scalar", 0.0)),
                int(getattr(trainer, "_globalstep_last_logged", 0)),
            ],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Put it back into the Trainer and its callbacks."""
        trainer, state = self._trainer, self._trainer.state
        for name in PLAIN:
            if name in saved:
                setattr(state, name, saved[name])
        state.log_history = list(saved["log_history"])
        for label, one in self._exporting().items():
            for name, value in saved["callbacks"].get(label, {}).get("attributes", {}).items():
                setattr(one, name, value)
        trainer._tr_loss = torch.tensor(saved["loss"], device=trainer.args.device)
        trainer._total_loss_scalar, trainer._globalstep_last_logged = saved["logged"]
        self._began = trainer._initial_global_step = saved["began"]

    def _exporting(self) -> dict[str, ExportableState]:
        """Callbacks by their classes; those of one class are numbered from the second on."""
        found: dict[str, ExportableState] = {}
        for one in (each for each in self._trainer.callback_handler.callbacks if isinstance(each, ExportableState)):
            like = sum(type(other) is type(one) for other in found.values())
            found[type(one).__name__ + (f" {like + 1}" if like else "")] = one
        return found

    def _states(self) -> dict[str, Any]:
        states = {name: one.state() for name, one in self._exporting().items()}
        self._exported = {name: frozenset(state.get("attributes", ())) for name, state in states.items()}
        return states

    def calls(self) -> list[tuple[Any, frozenset[str]]]:
        """What the Trainer calls of the script: callbacks, functions, and itself; each with its attributes that states hold."""
        trainer, own = self._trainer, {id(one): name for name, one in self._exporting().items()}
        called = [*trainer.callback_handler.callbacks, trainer.compute_loss_func, trainer.data_collator, trainer]
        return [(one, self._exported.get(own.get(id(one), ""), frozenset())) for one in called]


class TrainerMixin:
    """Put it before a Trainer: `class SFTTrainer(TrainerMixin, trl.SFTTrainer)`.

    An optimizer's step takes `lanes` batches of `per_device_train_batch_size`, wherever they are computed, and adds their
    gradients in a fixed order: the same bits on any number of processes that divides the lanes.

    Args:
        args: as the Trainer's.
        lanes: batches of a step; `--lanes` of the command line beats it. By default `gradient_accumulation_steps` times as
            many as are needed for 4 batches, or for one on each process.
        named: as the Trainer's.

    Raises:
        UsageError: for what cannot be exact.
    """

    _steps: Any = None
    _has_trained = False
    _flos = 0.0
    """Of this process's batches of the step."""

    def __init__(self, *args: Any, lanes: int | None = None, **named: Any) -> None:
        refuse_trl(type(self))
        self._wanted_lanes = lanes
        super().__init__(*args, **named)

    def create_accelerator_and_postprocess(self: Any) -> None:
        """As the Trainer's, with samebits's Accelerator."""
        arguments = self.args
        if arguments.auto_find_batch_size:
            raise UsageError(
                "auto_find_batch_size=True lets the memory of a process decide how many samples a step has.",
                "Leave it out.",
            )
        if not arguments.average_tokens_across_devices:
            raise UsageError(
                "average_tokens_across_devices=False weighs tokens by those of their process, so bits depend on the number of processes.",
                "Leave it out.",
            )
        accumulation = arguments.gradient_accumulation_steps
        self._accumulation = accumulation
        lanes = self._wanted_lanes or usual_lanes(accumulation)
        with _in_place_of("Accelerator", partial(Accelerator, lanes=lanes)):
            super().create_accelerator_and_postprocess()
        if self.accelerator.batches_per_step % accumulation:
            raise UsageError(
                f"gradient_accumulation_steps={accumulation} does not divide {self.accelerator.batches_per_step} lanes.",
                f"Use a multiple of {accumulation} (--lanes, or Trainer(lanes=)).",
            )
        loop = self.accelerator.loop
        self.accelerator.counts_local_batches = loop.knows_steps = loop.states.is_alike = True

    def _get_dataloader(self: Any, *args: Any, is_training: bool = False, **named: Any) -> Any:
        self.accelerator.only_evaluates = not is_training
        try:
            return super()._get_dataloader(*args, is_training=is_training, **named)
        finally:
            self.accelerator.only_evaluates = False

    @property
    def current_gradient_accumulation_steps(self) -> int:
        """1: the gradient of a step is the mean over its lanes, so nothing is divided before."""
        return 1

    @current_gradient_accumulation_steps.setter
    def current_gradient_accumulation_steps(self, number: int) -> None:
        pass

    def _get_train_sampler(self: Any, *args: Any, **named: Any) -> Any:
        """As the Trainer's, which groups samples by the user's number of accumulation steps, not by those of this process."""
        local, self.args.gradient_accumulation_steps = self.args.gradient_accumulation_steps, self._accumulation
        try:
            return super()._get_train_sampler(*args, **named)
        finally:
            self.args.gradient_accumulation_steps = local

    @property
    def gather_function(self) -> Any:
        """Of an evaluation: each sample once, so that the number of processes does not count."""
        return self._gather

    @gather_function.setter
    def gather_function(self: Any, function: Any) -> None:
        # The Seq2SeqTrainer sets one that leaves in what fills up the last batches.
        self._gather = self.accelerator.gather_for_metrics if function == self.accelerator.gather else function

    def train(self: Any, *args: Any, **named: Any) -> Any:
        """As the Trainer's, once. Collective: call it on every process.

        Raises:
            UsageError: for a second call.
        """
        if self._has_trained:
            raise UsageError(
                "trainer.train() was called a second time, and its run is over.",
                "Make a new Trainer, with the same model.",
            )
        if self.accelerator.run._run.loop_state.epoch.skipped:
            raise UsageError(
                "The Trainer counts its own steps, and --skip-steps would shift its schedule, its logs and its checkpoints.",
                "Leave --skip-steps out, or write the loop with samebits or Accelerate.",
            )
        self._has_trained = True
        before = self.args.gradient_accumulation_steps
        self.args.gradient_accumulation_steps = self.accelerator.local_batches
        try:
            return super().train(*args, **named)
        finally:
            self.args.gradient_accumulation_steps = before

    def _prepare_for_training(
        self: Any, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None
    ) -> Any:
        if resume_from_checkpoint is not None:
            require_own(Path(resume_from_checkpoint), "Trainer")
        model, loader = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self.accelerator.run.prepare(self.lr_scheduler)
        self.accelerator.run.track(trainer=(progress := Progress(self)))
        self.accelerator.run._run.loop_state.prepared.of_library = progress.calls
        if resume_from_checkpoint is not None:
            self.accelerator.load_samebits(Path(resume_from_checkpoint))
        return model, loader

    def _run_epoch(self: Any, *, epoch: int, train_dataloader: LaneLoader, **named: Any) -> None:
        loop, run = self.accelerator.loop, self.accelerator.run._run
        if not loop.begin_epoch(train_dataloader.prepared):
            return
        inside = run.loop_state.resumption.goes_on
        done = inside.done if inside is not None else 0
        named |= {
            "epochs_trained": epoch if done else -1,
            "steps_trained_in_current_epoch": done * self.args.gradient_accumulation_steps,
            "resume_from_checkpoint": RESUMED if done else None,
        }
        self._steps = loop.steps(train_dataloader.prepared)
        # Nothing is skipped by reading it.
        with _in_place_of("skip_first_batches", lambda loader, _: loader):
            super()._run_epoch(epoch=epoch, train_dataloader=train_dataloader, **named)
        steps, self._steps = self._steps, None
        stops = self.control.should_epoch_stop or self.control.should_training_stop
        if stops and loop.has_steps_left(train_dataloader.prepared):
            loop.leave()
        elif next(steps, None) is not None:
            raise UsageError("The Trainer left an epoch before its last step.", "Do not override its loop.")

    def get_batch_samples(self: Any, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[Any, None]:  # noqa: ARG002
        """The batches of a step. How many items each has is counted where it is computed."""
        step = next(self._steps, None)
        if step is None:
            return [], None
        return StepBatches(step, self.accelerator.loop.lanes_of(step)), None

    @property
    def current_flos(self) -> float:
        """0: the operations of a step are counted with its last batch."""
        return 0.0

    @current_flos.setter
    def current_flos(self, number: float) -> None:
        pass

    def store_flos(self) -> None:
        """Nothing is left to be stored."""

    def _count_flos(self: Any, inputs: Any) -> None:
        """Add the operations of a batch; with the last one of a step, those of all processes to the Trainer's state.

        Before the update: where a process is lost in this exchange, the run resumes from this step.
        """
        self._flos += float(self.floating_point_ops(inputs))
        if self.accelerator.loop.is_last:
            transport = self.accelerator.run._run.components.transport
            self.state.total_flos += sum(transport.all_gather_object(self._flos, "operations of a step", where()))
            self._flos = 0.0

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> None:
        """Not of several batches: those that a process has would weigh each other's losses."""

    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:  # noqa: ARG002
        """As the Trainer's: a batch's loss is the mean over its items (tokens), and counts by their number.

        Returns:
            The loss of the step, the same on every process, with its last batch; 0 with those before.
        """
        loop = self.accelerator.loop
        items = self._num_items_of(inputs)
        self.accelerator.weight = items
        # At least 1: the loss of a batch without items is 0 then, and not 0 / 0.
        super().training_step(
            model, inputs, None if items is None else torch.tensor(max(items, 1), device=self.args.device)
        )
        self._count_flos(inputs)
        return torch.tensor(loop.loss if loop.is_last else 0.0, device=self.args.device)

    def _num_items_of(self: Any, batch: Any) -> int | None:
        """The number of items of a batch; None for losses that are means over samples."""
        self.args.average_tokens_across_devices = False
        try:
            items = super()._get_num_items_in_batch([batch], self.args.device)
        finally:
            self.args.average_tokens_across_devices = True
        return None if items is None else int(items)

    def _maybe_log_save_evaluate(self: Any, *args: Any, **named: Any) -> Any:
        decided = [name for name in DECISIONS if getattr(self.control, name)]
        if decided:
            # A callback that asks which process it is on decides for one only: here that ends with both places in a sentence.
            label = " and ".join(f"control.{name}" for name in decided)
            self.accelerator.run._run.components.transport.all_gather_object(0, label, where())
        # The loss is that of all lanes already. Without an exchange of its own, a log is no place where a lost process is
        # noticed, from which the run could not go on.
        with _in_place_of("nested_gather", lambda tensor, _: tensor):
            return super()._maybe_log_save_evaluate(*args, **named)

    def _save_checkpoint(self: Any, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self.accelerator.loop.states.ask(folder / STATE)

    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        """Random numbers are samebits's: each lane has its own."""


class Trainer(TrainerMixin, transformers.Trainer):
    """Hugging Face's Trainer; see `TrainerMixin`."""


class Seq2SeqTrainer(TrainerMixin, transformers.Seq2SeqTrainer):
    """Hugging Face's Seq2SeqTrainer; see `TrainerMixin`."""
