"""The Run: what `samebits.init` returns and a training script holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from samebits.errors import EnvironmentFailure, UsageError
from samebits.protocol.layout.stream_key import Domain, stream_key
from samebits.rank.caller import where
from samebits.rank.checkpoint.parts.tracking import is_average, take_averages, track
from samebits.rank.checkpoint.store.at_url import load_state, save_state, save_weights
from samebits.rank.checks.labels import label_gradients, leave_loop, refuse_loop_without_turn
from samebits.rank.position.kept_values import KeptValues
from samebits.rank.position.moment import Region
from samebits.rank.position.run_state import RunState
from samebits.rank.position.tally import Agreed, Tally
from samebits.rank.run.loop.collectives import broadcast, gather, log, new_tally, over_ranks, returned
from samebits.rank.run.loop.counts import take_losses
from samebits.rank.run.loop.lane_sum import lane_cat, lane_sum
from samebits.rank.run.loop.per_lane import PerLane, per_lane
from samebits.rank.run.loop.training import Steps, StepsOfEpochs, checked_loader
from samebits.rank.run.prepare.preparation import prepare
from samebits.rank.strategy.contract import ORDERED_FORM, RIGHT_FORM

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
Rules = dict[str, str] | None
By = Literal["element", "parameter"] | None


class Run:
    """One training job as one rank sees it. Made by `samebits.init`.

    Methods marked "Collective" exchange something: call them on every rank, in the same order, outside lanes.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self._run.config.environment.position.rank

    @property
    def local_rank(self) -> int:
        """This rank among those of its node."""
        return self._run.config.environment.position.local_rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._run.config.environment.position.world_size

    @property
    def num_lanes(self) -> int:
        """The number of lanes; it belongs to the run and does not depend on the ranks."""
        return self._run.config.placement.num_lanes

    @property
    def device(self) -> torch.device:
        """The device that this rank's batches are on."""
        return self._run.config.device

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0. Never put a collective method behind it."""
        return self.rank == 0

    @overload
    def prepare(self, a: A, /, *, buffers: Rules = None, cut: Sequence[str] = (), updates_by: By = None) -> A: ...
    @overload
    def prepare(
        self, a: A, b: B, /, *, buffers: Rules = None, cut: Sequence[str] = (), updates_by: By = None
    ) -> tuple[A, B]: ...
    @overload
    def prepare(
        self, a: A, b: B, c: C, /, *, buffers: Rules = None, cut: Sequence[str] = (), updates_by: By = None
    ) -> tuple[A, B, C]: ...
    @overload
    def prepare(
        self, a: A, b: B, c: C, d: D, /, *, buffers: Rules = None, cut: Sequence[str] = (), updates_by: By = None
    ) -> tuple[A, B, C, D]: ...
    @overload
    def prepare(
        self, a: A, b: B, c: C, d: D, e: E, /, *, buffers: Rules = None, cut: Sequence[str] = (), updates_by: By = None
    ) -> tuple[A, B, C, D, E]: ...
    @overload
    def prepare(
        self,
        a: Any,
        b: Any,
        c: Any,
        d: Any,
        e: Any,
        f: Any,
        /,
        *more: Any,
        buffers: Rules = None,
        cut: Sequence[str] = (),
        updates_by: By = None,
    ) -> tuple[Any, ...]: ...
    def prepare(self, *things: Any, buffers: Rules = None, cut: Sequence[str] = (), updates_by: By = None) -> Any:
        """Take models, bare parameters, optimizers, schedulers, DataLoaders and averages of weights (EMA, SWA).

        Collective: call it on every rank, with the same objects. All of them may come between two steps or epochs too,
        under single, ddp and zero1; an optimizer that has all parameters of an earlier one replaces it. A start that resumes
        from a state must prepare what that run had prepared by then, in the same order, before its first step; what is new is
        loaded into them then. A new model has its values before it is prepared.

        Args:
            things: each comes back as the same object, in the given order; only a DataLoader becomes a new one. An average
                (torch's AveragedModel, ema-pytorch's EMA, timm's ModelEma) belongs to every state, and is not trained. A
                tensor trained without a module (a temperature, class centres) may be one of them.
            buffers: what to do with buffers that differ between lanes: patterns of names to "sum" (what the lanes
                add is added up), "first", "mean", "min" or "max" (of the values that lanes left).
            cut: names of layers that begin a stage, where a strategy cuts the model; by default the cut is measured.
            updates_by: where each rank updates a part of the parameters (zero1, model_parallel, pipeline): whether
                optimizers that samebits does not know update each "element", or each "parameter", independently.

        Returns:
            The thing itself if there is one, else a tuple of all.

        Raises:
            UsageError: when a thing cannot be carried, was prepared before, or differs between ranks.
        """
        self._run.loop_state.position.require_same_on_every_rank("run.prepare")
        self._require_present()
        self._run.components.strategy.name_cuts(cut)
        averages = [thing for thing in things if is_average(thing)]
        others = [thing for thing in things if not is_average(thing)]
        made = iter(prepare(self._run, others, buffers or {}, updates_by) if others or not averages else ())
        take_averages(self._run, averages)
        prepared = [thing if is_average(thing) else next(made) for thing in things]
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def _require_present(self) -> None:
        if self._run.loop_state.ended:
            raise UsageError(
                "This run has ended, because samebits.init was called again (or samebits.finish).",
                "Use the Run that the last samebits.init returned, and prepare everything with it.",
            )

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yield 0, 1, …, `num_epochs` - 1; after `run.load_state` those left. The progress line counts along."""
        loop_state = self._run.loop_state
        states = self._run.components.states
        self._run.begin()
        step_timer = self._run.components.step_timer
        step_timer.num_epochs = num_epochs
        epoch = -1
        try:
            for epoch in () if self._run.loop_state.is_recorded else loop_state.epochs.epochs(num_epochs):
                step_timer.epoch = epoch + 1
                if states.is_inside:
                    loop_state.epoch.body_streams = self._run.components.streams.snapshot()
                loop_state.tallies.enter_body()
                loop_state.prepared.preparations.at_body = dict(loop_state.prepared.preparations.made)
                loop_state.schedulers.enter_body()
                yield epoch
                for begin_loop in self._run.components.observers.begin_loop:
                    begin_loop()
                label_gradients(self._run)
                self._run.components.checks.say_idle()
                states.after_body(is_last=epoch == num_epochs - 1)
                if self._run.loop_state.is_recorded:
                    return
            if epoch < 0:
                refuse_loop_without_turn(self._run)
            leave_loop(self._run)
        finally:
            # Also when the script leaves the loop.
            states.leave_loop()

    def steps(self, loader: Iterable[Any], epochs: int | None = None) -> Steps:
        """Train on one epoch of a prepared loader, or on several: the same number of steps on every rank.

        `tqdm(run.steps(loader))` works: the result has its number of steps as its length.

        Args:
            loader: what `prepare` returned for a DataLoader.
            epochs: a short form where nothing is done between epochs: the steps of all of them in one loop, with the bits,
                states and resumes of `for _ in run.epochs(epochs): for step in run.steps(loader):`.

        Raises:
            UsageError: when the loader was not prepared, inside another step, or when the order differs between ranks;
                with `epochs` inside `run.epochs`.
        """
        self._require_present()
        prepared = checked_loader(self._run, loader)
        if epochs is None:
            return Steps(self._run, prepared)
        if self._run.loop_state.epochs.in_body:
            raise UsageError("run.steps(epochs=) was called inside run.epochs.", "Leave epochs= out there.")
        return StepsOfEpochs(self._run, prepared, epochs, self.epochs(epochs))

    def backward(
        self, loss: Any, weight: float | None = None, *, counts: Any = None, retain_graph: bool = False
    ) -> None:
        """Run the backward of the current lane's loss; several in one lane add up.

        Args:
            loss: a scalar, the mean over the lane's samples. With `counts`, a sum, or a tuple, list or dict of them.
            weight: what the loss is a mean over, if not the samples: the number of tokens, say. In all lanes or none.
            counts: a number for each sum, by whose total over the whole batch (or 1 where that is 0) it is divided: one
                device's gradient. A rank keeps the graphs of all its lanes, and backwards come behind the last. In all or none.
            retain_graph: as for `Tensor.backward`, for a second call on the same graph.

        Raises:
            UsageError: outside a step's lanes; with `counts` where the model is cut into stages, and under hogwild.
        """
        if self._run.loop_state.position.region is not Region.LANE:
            raise UsageError("run.backward was called outside a step's lanes.", f"Call it inside them:\n{RIGHT_FORM}")
        if self._run.loop_state.open_pass.lane is None:
            raise UsageError(
                "run.backward was called inside the function passed to step.backward.",
                f"Return the loss instead:\n{ORDERED_FORM}",
            )
        if counts is not None:
            take_losses(self._run, loss, counts, weight)
            return
        self._run.loop_state.open_pass.lane.backward(loss, weight, retain_graph=retain_graph)

    def clip_grad_norm_(
        self, parameters: Tensor | Iterable[Tensor] | nn.Module, max_norm: float, norm_type: float = 2.0
    ) -> Agreed:
        """Clip the gradients between a step's lanes and `optimizer.step()`; return the norm before clipping.

        The norm has the same bits under every strategy and on any number of ranks. torch's own function gives the same
        value up to rounding.
        """
        if self._run.loop_state.position.in_lane:
            raise UsageError("Gradients are complete only after a step's lanes.", f"Clip them there:\n{RIGHT_FORM}")
        if isinstance(parameters, nn.Module):
            parameters = parameters.parameters()
        listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        return Agreed(self._run.components.strategy.clip_grad_norm(listed, float(max_norm), float(norm_type)))  # type: ignore[arg-type]

    def log(self, **scalars: float | Tensor) -> None:
        """Write values to the progress line and to `metrics.jsonl`. Collective: call it on every rank.

        Inside a lane, a value is weighted by the lane's samples, and the global mean is written. Outside, `step.loss`,
        tallies and `run.mean` are global already; one that differs between ranks is averaged by their samples.
        """
        log(self._run, scalars)

    def log_to(self, function: Callable[[dict[str, float], int], None]) -> None:
        """Give every value of `run.log` to a function as well: `run.log_to(lambda values, step: writer.add(values, step))`.

        It is called on rank 0, where the value is logged, once for each call of `run.log` and in order: when ranks resume
        after a loss, what was given before is not given again. Only the call during which rank 0 was killed comes twice. A
        run that is started again by its name begins with the step from which it resumes. What the function raises, `run.log`
        raises.

        Args:
            function: takes the values by name, which are the same on every rank, and the step.
        """
        if self.rank == 0:
            self._run.components.metrics.listeners.append(function)

    def sum(self, value: float | Tensor) -> Any:
        """Return the sum over ranks of a number or a tensor of equal shape, in rank order.

        Collective: call it on every rank. Sums of floats have other bits on other numbers of ranks: use `run.lane_sum` for
        what a step's lanes made, and `run.tally()` for numbers.
        """
        return over_ranks(self._run, "run.sum", value, 1.0)

    def lane_sum(self, made: Sequence[Tensor]) -> Tensor:
        """Return the sum over all lanes of the step of a tensor that each lane made: the same bits on any number of ranks.

        Collective: call it on every rank, after the step's lanes. A code book's counts, a teacher's centre, class means.

        Args:
            made: one tensor for each lane that this rank went through in this step, in the order of the loop; none on a
                rank whose lanes have no samples. Shape and dtype are the same in every lane. Graphs are not followed.

        Returns:
            A tensor of that shape and dtype; 16-bit floats are added in float32 and rounded once.

        Raises:
            UsageError: on every rank, when a rank has more or fewer tensors than lanes, or they differ in form; with
                stages, and under hogwild.
        """
        return returned(self._run, "run.lane_sum", lane_sum(self._run, made))

    def lane_cat(self, made: Sequence[Tensor]) -> Tensor:
        """Return the rows that all lanes of the step made, lane by lane: the same bits on any number of ranks.

        Collective: call it on every rank, after the step's lanes. A memory bank, a queue of keys, hard examples.

        Args:
            made: as for `lane_sum`, but lanes may have different numbers of rows, also none. Graphs are not followed.

        Returns:
            A tensor of that dtype with the rows of lane 0, then of lane 1, and so on.

        Raises:
            UsageError: on every rank, as for `lane_sum`, and for tensors without a dimension.
        """
        return returned(self._run, "run.lane_cat", lane_cat(self._run, made))

    def per_lane(self, make: Callable[[], Any]) -> PerLane:
        """Return a value for each lane, `hidden.value` in the lanes, which a lane hands on to itself in the next step.

        Collective: call it on every rank, before the first epoch or step and before `run.load_state`. A hidden state that goes
        from batch to batch, an environment, recent samples: the bits are the same on any number of ranks. The values are in
        every state, and outlive the rank that made them; ranks exchange what their lanes wrote behind each step's lanes.

        Args:
            make: returns a lane's first value: numbers, texts, switches, None, tensors without a graph, and tuples, lists,
                sets and dictionaries of them. Called in the lane, so that what it draws is the lane's own.

        Raises:
            UsageError: where the model is cut into stages, under hogwild, and as for `run.track`; where a lane leaves another
                kind of value.
        """
        return per_lane(self._run, make)

    def mean(self, value: float | Tensor) -> Any:
        """Return the mean over ranks, each counting the same. Collective: call it on every rank.

        For a mean over samples use `run.tally()`.
        """
        return over_ranks(self._run, "run.mean", value, 1.0 / self.world_size)

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any rank. Collective: call it on every rank."""
        self._run.loop_state.position.require_same_on_every_rank("run.any")
        return self._run.components.transport.any(bool(flag), "run.any", where())

    def all(self, flag: bool) -> bool:
        """Return whether `flag` is true on every rank. Collective: call it on every rank."""
        self._run.loop_state.position.require_same_on_every_rank("run.all")
        return self._run.components.transport.all(bool(flag), "run.all", where())

    def gather(self, rows_of_rank: Tensor, loader: Iterable[Any] | None = None) -> Tensor:
        """Return the rows of the last evaluation in data-set order, exactly `len(dataset)` of them.

        Collective: call it on every rank.

        Args:
            rows_of_rank: one row for each sample that the last `for batch in loader` gave this rank, in that order.
            loader: the one whose last evaluation is meant, if not the last of all.
        """
        return gather(self._run, rows_of_rank, loader)

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value that rank `source` has. Collective: call it on every rank.

        Args:
            value: a tensor of equal shape and dtype on every rank, or something that JSON can write.
            source: the rank.
        """
        return broadcast(self._run, value, source)

    def barrier(self) -> None:
        """Wait until every rank has come here. Collective: call it on every rank."""
        self._run.loop_state.position.require_same_on_every_rank("run.barrier")
        self._run.components.transport.barrier("run.barrier", where())

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block on rank 0, then on the others: prepare data once, then read it.

        Collective: call it on every rank. When rank 0 fails in the block, the others raise too and do not run it.
        """
        self._run.loop_state.position.require_same_on_every_rank("run.main_first")
        line = where()
        if not self.is_main and not self._run.components.transport.all(True, "main_first", line):
            raise EnvironmentFailure(f"rank 0 failed in `with run.main_first()` ({line}).")
        worked = False
        try:
            yield
            worked = True
        finally:
            if self.is_main:
                self._run.components.transport.all(worked, "main_first", line)

    def tally(self) -> Tally:
        """A new set of weighted sums over samples."""
        return new_tally(self._run)

    def print(self, *values: Any, **options: Any) -> None:
        """Print on rank 0 only."""
        if self.is_main:
            print(*values, **options)

    def save_weights(self, model: nn.Module, path: str | os.PathLike[str]) -> None:
        """Write the model's weights as safetensors, atomically, from rank 0 while all wait.

        Collective: call it on every rank. `path` may be a URL.

        Raises:
            EnvironmentFailure: on every rank, when rank 0 cannot write.
        """
        save_weights(self._run, model, path)

    @property
    def state(self) -> KeptValues:
        """Plain values that belong to every state: `run.state.best = 0.91`, the same on every rank.

        Numbers, texts, switches, None, tensors, and tuples, lists, sets and dictionaries of them. What is assigned before
        the first epoch (or before `run.load_state`) is a first value: where a state is loaded, its own replaces it.

        Raises:
            UsageError: at an assignment of what cannot be saved without pickle.
        """
        return self._run.loop_state.values

    def track(self, **objects: Any) -> None:
        """Name objects that belong to every state: an average of the weights, a metric, a scheduler of your own.

        Collective: call it on every rank, before the first epoch or step and before `run.load_state`.

        Every state has their `state_dict`, the same on every rank; where a state is loaded, `load_state_dict` gets it. A
        state with a name that the script does not track is refused; an object that the state does not have begins as
        the script made it, and a notice says so.

        Raises:
            UsageError: for what has no `state_dict` and `load_state_dict`, for a state that cannot be saved without
                pickle, for a name or an object that comes twice, and when ranks differ.
        """
        track(self._run, objects)

    def save_state(self, path: str | os.PathLike[str], **extra: Any) -> None:
        """Write everything that the run needs to resume into the folder `path`, which is replaced as a whole.

        Collective: call it on every rank.

        Call it between epochs: at the end of the epoch's body, or outside the loop. It holds the prepared models,
        optimizers and schedulers, what `run.track` named, `run.state`, the counters, the random streams; gradients are
        not part of it. No pickle: JSON and safetensors. At every instant a complete state is on the disk.

        Args:
            path: a folder of its own; rank 0 writes it, and at `load_state` every rank must be able to read it. Or a URL
                that fsspec knows (s3://bucket/exp1), where rank 0 copies the state to.
            extra: the script's own: values that JSON can hold, tensors, tuples, …, the same on every rank; or objects
                with `state_dict` and `load_state_dict` (a model average, a metric).

        Raises:
            UsageError: on every rank, before anything is written: inside an epoch's steps, for a value that cannot be
                saved without pickle, when ranks differ, or when `path` holds something else.
            EnvironmentFailure: on every rank, when rank 0 cannot write, or not reach the URL. An older state is still there.
        """
        save_state(self._run, path, extra)

    def load_state(self, path: str | os.PathLike[str], *, missing_ok: bool = False, **objects: Any) -> dict[str, Any]:
        """Resume from the folder that `run.save_state` wrote, on any number of ranks. Collective: call it on every rank.

        Prepare the same things in the same order first. `run.epochs(n)` then yields the epochs that are left. With the
        same lanes, threads and seed the bits are those of a run that was never stopped.

        Args:
            path: the folder, or its URL; one rank of each node copies it from there.
            missing_ok: do nothing when there is no state yet, so one script serves the first start and every later one.
            objects: the objects that the script passed to `save_state`, by the same names; loaded in place.

        Returns:
            The values that the script passed to `save_state`; empty when there was no state.

        Raises:
            UsageError: on every rank, before anything is changed: no state, a damaged file, or a state that does not
                fit what the run prepared.
        """
        if self._run.components.states.place:
            raise UsageError(
                "run.load_state was called in a run that resumes from its own states.",
                "Leave out run.load_state, or save_every.",
            )
        return load_state(self._run, path, objects, missing_ok=missing_ok)

    save_checkpoint, load_checkpoint = save_state, load_state
    """The same, by the name that other libraries have for it."""

    def seed(self, *place: int | str) -> int:
        """A 64-bit seed for a generator of your own, keyed by the run's seed and `place` (an epoch, a name)."""
        return stream_key(self._run.components.streams.seed, Domain.SCRIPT, *place)
