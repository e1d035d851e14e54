"""A plain loop over batches, driven as a loop over epochs, steps and lanes: each batch that the loop gets is a lane.

    for batch in loader:        a lane is open
        backward(loss)          in the last of this rank's lanes: it is closed, the lanes are added over all ranks
        optimizer.step()        does nothing before that

So the body of the loop need not know of lanes. Whoever drives it asks `is_last` where the other library asks whether
gradients are to be synchronised.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, cast

from torch import Tensor

from samebits.errors import SamebitsError, UsageError
from samebits.integrations.asked_states import AskedStates
from samebits.integrations.before_a_step import EarlierGradients, Rates
from samebits.notices import say
from samebits.rank.data.loader import PreparedLoader
from samebits.rank.data.stream import PreparedStream
from samebits.rank.position.moment import Region
from samebits.rank.position.run_state import RunState
from samebits.rank.run.ending import has_failed
from samebits.rank.run.loop.step import Step
from samebits.rank.run.run import Run

ENDLESS = 1 << 40
"""More epochs than any script has: how many there are is known only to the script."""
_END = object()
BY_COUNTING = (
    "by a script that never asks accelerator.sync_gradients or completed_steps: by a count of batches, of which fewer processes "
    "have more."
)
WHERE = (
    "Do it where accelerator.sync_gradients is true, behind optimizer.step(), and count accelerator.completed_steps."
)

ONE = "Make one, and pass it on: device and process_index for helpers are in accelerate.PartialState() too."
GAN = (
    "Behind it the step is over, so a GAN that updates one model after the other is two passes over a step: write that with "
    "samebits's own loop, `for batch in step:` once for each optimizer."
)


class LaneLoop:
    """Where a script is in its loops.

    Args:
        run: the run that is driven.
        set_sync: is called before each batch with whether it is the last one of this rank's in the step.
        optimizers: the prepared ones, for their parameters.
    """

    def __init__(self, run: Run, set_sync: Callable[[bool], None], optimizers: Callable[[], Iterable[Any]]) -> None:
        _newest[:] = [weakref.ref(self)]
        _follow_a_library(run._run)
        self._run, self._set_sync, self._optimizers = run, set_sync, optimizers
        self.states, self.rates = AskedStates(run), Rates(lambda: optimizers() if run.num_lanes > 1 else ())
        self.evaluates = False
        """Whether the script is in a loop over batches that counts as an evaluation."""
        self._epochs: Generator[int] | None = None
        self._running: Generator[Step] | None = None
        self._epoch = self._calls = 0
        self._script_skips = self._has_loaded = False
        self.skips_epoch = False
        """Whether the script is behind an epoch that was done before this start."""
        self._reported: set[str] = set()
        self._left = ""
        """What is wrong with how the script left its loop."""
        self._failed: SamebitsError | None = None
        """What happened when it did."""
        self._leaves_together = self._refused = False
        self.knows_steps = False
        """Whether the script has asked where a step is over. One that has not can only count batches, of which a process has more
        where there are fewer."""
        self._step: Step | None = None
        self._lanes: Iterator[Any] | None = None
        self.earlier = EarlierGradients()
        self.is_last = True
        self._has_backward = self._loop_has_backward = False
        self._computed: list[bool] = []
        self._stepped: list[set[int]] = []
        """For each lane so far: the optimizers whose `step` the script called in it."""

    @property
    def in_lane(self) -> bool:
        """Whether a lane is open."""
        return self._run._run.loop_state.position.region is Region.LANE

    @property
    def in_step(self) -> bool:
        """Whether the script is in the body of its loop over batches."""
        return self._step is not None

    @property
    def step(self) -> int:
        """The step that the script is in, or has finished last, from 1."""
        return self._run._run.components.step_timer.step

    def let_script_skip(self) -> None:
        """A script that has loaded a state skips what is done by itself: the next loop over batches is the state's epoch."""
        self._script_skips = self._has_loaded = True

    def batches(self, loader: PreparedLoader) -> Generator[Any]:
        """The batches of this rank's lanes in the loader's next epoch; none of an epoch that was done before a restart."""
        if not self.begin_epoch(loader):
            return
        steps = self.steps(loader)
        try:
            for step in steps:
                yield from self.lanes_of(step)
        finally:
            # Left by `break`, it is over now, and not when this generator's last reference goes.
            steps.close()

    def begin_epoch(self, loader: PreparedLoader) -> bool:
        """The script is at its next epoch; whether it has steps left. Collective: call it on every rank."""
        if self.in_step:
            raise two_loops()
        self.require_whole_steps()
        require_present(self._run)
        self.states.agree_outside()
        if self._epochs is None:
            self._epochs = cast("Generator[int]", self._run.epochs(ENDLESS))
            atexit.register(self._close)
            self._epoch = next(self._epochs)
            if self._script_skips:
                self._pass_over_a_done_epoch(loader)
                self._calls = self._epoch
        elif self._calls > self._epoch:
            self._epoch = next(self._epochs)
        # The progress line cannot tell how many there are.
        self._run._run.components.step_timer.num_epochs = 0
        self._calls += 1
        self.skips_epoch = self._calls <= self._epoch
        if self.skips_epoch:
            self._report_once(
                "epochs that were done before this start yield no batches: what the script does behind them runs again, with the "
                "weights of now, and its checkpoints are not written again."
            )
        return not self.skips_epoch

    def _pass_over_a_done_epoch(self, loader: PreparedLoader) -> None:
        """Behind the last step of an epoch a script continues with the next one."""
        inside = self._run._run.loop_state.resumption.goes_on
        # Of a stream only its end tells that it was there: its epoch resumes, without a step.
        if inside is not None and not isinstance(loader, PreparedStream) and inside.done >= len(loader):
            assert not [*self._run.steps(loader)], "a done epoch has no step left"
            assert self._epochs is not None
            self._epoch = next(self._epochs)

    def steps(self, loader: PreparedLoader) -> Generator[Step]:
        """The steps that are left of the epoch that has begun."""
        self._running = self._steps(loader)
        return self._running

    def has_steps_left(self, loader: PreparedLoader) -> bool:
        """Whether the step that the script is in is not the last one of its epoch, as far as the loader knows."""
        return self._step is None or isinstance(loader, PreparedStream) or self._step.index + 1 < len(loader)

    def leave(self) -> None:
        """Leave the loop behind a step, the same on every rank."""
        self._leaves_together = True
        assert self._running is not None
        self._running.close()

    def _close(self) -> None:
        """The script ends, perhaps with a loop that it has not left."""
        # Said where the script goes on no further: an error that is on its way leaves its loop too.
        if self._left and not has_failed(self._run._run):
            say(self._left)
        if self._running is not None:
            self._running.close()
        self.states.agree_outside()
        if self._epochs is not None:
            self._epochs.close()

    def _steps(self, loader: PreparedLoader) -> Generator[Step]:
        self._loop_has_backward = False
        try:
            steps = cast("Generator[Step]", iter(self._run.steps(loader)))
            for step in steps:
                self._step, self._stepped, self._computed = step, [], []
                self.earlier.put_aside(self._optimizers())
                try:
                    yield step
                except GeneratorExit:
                    self._note_left()
                    self._leave(steps)
                    raise
                self._finish()
                check_updates(self._stepped)
        finally:
            self._step, self._lanes, self._stepped = None, None, []

    def _leave(self, steps: Generator[Step]) -> None:
        """Leave the run's loop too, which writes what was asked for in this step."""
        try:
            self.states.agree()
            steps.close()
        except SamebitsError as error:
            # Python drops what is raised where a loop is left by `break`.
            self._failed = error

    def _note_left(self) -> None:
        """The script leaves its loop, perhaps where processes are at different batches, or by a number that depends on theirs."""
        if self._refused or not self._loop_has_backward:
            return
        if self._lanes is not None and any((self._has_backward, *self._computed)):
            self._left = (
                "The loop over batches was left in the middle of a step, where processes are at different batches: that step "
                "was dropped."
            )
        elif self._counts_batches:
            self._left = f"The loop over batches was left before the end of its epoch {BY_COUNTING}"
        elif not self._leaves_together and self._step is not None and len(self._step.lanes) > 1:
            self._report_once(
                f"the loop over batches was left after step {self._step.index + 1} of its epoch. A script that counts batches leaves "
                "it earlier on fewer processes: count accelerator.completed_steps."
            )

    @property
    def _counts_batches(self) -> bool:
        """Whether the script cannot have told where a step is over, and has more batches in one than other processes might."""
        return not self.knows_steps and self._step is not None and len(self._step.lanes) > 1

    def _report_once(self, sentence: str) -> None:
        if sentence not in self._reported and self._run.rank == 0:
            say(sentence)
        self._reported.add(sentence)

    def require_left_well(self) -> None:
        """Raise `UsageError` when the script has left its loop where or when the number of processes counts."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        if self._left:
            self._refused = True
            raise UsageError(self._left, WHERE)

    def require_whole_steps(self) -> None:
        """Call where a script does what is to be the same on any number of processes.

        Raises:
            UsageError: when it is not, because of how a loop was left, or inside one that never asked where a step is over.
        """
        self.require_left_well()
        if self._counts_batches:
            self._refused = True
            raise UsageError(f"This was called inside the loop over batches {BY_COUNTING}", WHERE)

    def lanes_of(self, step: Step) -> Iterator[Any]:
        """The batches of a step, one for each of this rank's lanes."""
        num_lanes = len(step.lanes)
        self._lanes = iter(step)
        self.rates.begin()
        for number in range(num_lanes):
            self.is_last = number == num_lanes - 1
            self._set_sync(self.is_last)
            self._stepped.append(set())
            self._has_backward = False
            yield next(self._lanes)
            self._computed.append(self._has_backward)
            if not self._has_backward:
                raise not_computed(self._has_loaded)
            self.rates.end(knows_steps=self.knows_steps, is_last=self.is_last)

    @property
    def is_before_backward(self) -> bool:
        """Whether a lane is open whose loss may still change."""
        return self.in_lane and not self._has_backward

    @property
    def loss(self) -> float:
        """The mean loss of the step whose last lane has had its backward, over all lanes.

        Raises:
            UsageError: before it.
        """
        if self._step is None or self.in_lane:
            raise UsageError(
                "The loss of a step is known behind the backward of its last batch.",
                "Read accelerator.step_loss where accelerator.sync_gradients is true, behind backward.",
            )
        return float(self._step.loss)

    def backward(self, loss: Tensor, weight: float | None = None, *, retain_graph: bool = False) -> None:
        """The backward of the open lane's loss. In the last lane the step's gradient is complete afterwards.

        Raises:
            UsageError: outside a lane.
        """
        if self._has_backward and self._stepped and self._stepped[-1]:
            raise UsageError("backward was called behind optimizer.step() of the same batch.", GAN)
        if not self.in_lane:
            raise misplaced(in_step=self.in_step, evaluates=self.evaluates)
        self.rates.at_backward(is_first=not self._computed)
        # An error in here says by itself why the script leaves its loop.
        self._refused = True
        self._run.backward(loss, weight, retain_graph=retain_graph)
        self._has_backward = self._loop_has_backward = True
        if self.is_last and not retain_graph:
            self._finish()
        self._refused = False

    def note_update(self, optimizer: Any) -> bool:
        """The script calls `step` of this optimizer; whether it may act: after the last lane's backward.

        Raises:
            UsageError: when the last lane had no backward.
        """
        if self._stepped:
            self._stepped[-1].add(id(optimizer))
        if self.in_lane and self.is_last:
            if self._has_backward:
                raise UsageError("optimizer.step() was called between two backward calls of a batch.", GAN)
            raise UsageError("optimizer.step() was called before backward.", "Call accelerator.backward(loss) first.")
        return not self.in_lane

    def _finish(self) -> None:
        """Close the last lane, and add all lanes over the ranks."""
        if self._lanes is None:
            return
        lanes, self._lanes = self._lanes, None
        extra = next(lanes, _END)
        assert extra is _END, "a rank's lanes are as many as its step says"
        self.earlier.add()


def _follow_a_library(run: RunState) -> None:
    run.loop_state.follow_a_library()
    # Where the last lane is, and what a library counts, is in the loop's order.
    run.loop_state.position.reverses = False


def check_updates(stepped: Sequence[set[int]]) -> None:
    """Whether each optimizer stepped in every lane, or in the last one only, and at least one did.

    Args:
        stepped: for each lane of this rank, the optimizers whose `step` was called in it.

    Raises:
        UsageError: for a script that accumulates, or alternates, by counting batches: the count depends on the ranks.
    """
    counts = [sum(one in lane for lane in stepped) for one in set[int]().union(*stepped)]
    all_in_last = len(stepped[-1]) == len(counts)
    if not counts or not all_in_last or any(count not in (1, len(stepped)) for count in counts):
        raise UsageError(
            "optimizer.step() was not called in every batch of a step, or not in its last one: the script accumulates "
            "gradients by counting batches, and how many a process gets depends on their number.",
            "Write `with accelerator.accumulate(model):` around the body, and name gradient_accumulation_steps= in Accelerator.",
        )


_newest: list[weakref.ref[LaneLoop]] = []


def refuse_another() -> None:
    """Raise `UsageError` where another run would end this process's in the middle of its loop."""
    loop = _newest[0]() if _newest else None
    if loop is not None and loop.in_step and not loop._run._run.loop_state.ended:
        raise UsageError("Another Accelerator() was made inside the loop over batches of the first one.", ONE)


def require_present(run: Run) -> None:
    """Raise `UsageError` when the run has ended because another one began in this process."""
    if run._run.loop_state.ended:
        raise UsageError(
            "The run of this Accelerator has ended, because another Accelerator() was made in this process.", ONE
        )


def two_loops() -> UsageError:
    """The error for a loop over a loader in another one."""
    return UsageError(
        "A loop over a prepared loader began inside another one (zip of two loaders, or an iterator that is still held).",
        "Give one loader both data sets: torch.utils.data.StackDataset.",
    )


def misplaced(*, in_step: bool, evaluates: bool) -> UsageError:
    """The error for a backward outside a lane: in a step, in a loop that evaluates, or elsewhere."""
    if in_step:
        return UsageError(
            "backward was called a second time for the last batch of a step.",
            "Add the losses of a batch and call it once, or pass retain_graph=True to all calls but the last.",
        )
    if evaluates:
        return UsageError(
            "backward was called in a loop that counts as an evaluation: it began with every prepared model in eval mode.",
            "Call model.train() before the loop; to train without dropout, model.eval() as its first line.",
        )
    return UsageError(
        "backward was called outside a loop over a prepared loader.",
        "Write `loader = accelerator.prepare(loader)`, and loop over that itself.",
    )


def not_computed(has_loaded: bool) -> UsageError:
    """The error for a batch without a backward; `has_loaded`: a state, from which the script resumes."""
    return UsageError(
        "A batch was taken, and the next one asked for, without a backward between them.",
        "Leave out the `continue` that skips batches: after load_state the loader resumes by itself."
        if has_loaded
        else "Compute each batch before the next one is taken (fetching ahead is the loader's, num_workers=); around a loop that "
        "evaluates write model.eval() or torch.no_grad().",
    )
