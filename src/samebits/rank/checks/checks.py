"""What every run watches, as its loop calls it: at lanes, evaluations, exchanges of values, and the end.

Runs in: the main thread of each rank. None of it exchanges anything; all of it may raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from samebits.notices import say
from samebits.protocol.run_folder import RunFolder
from samebits.rank.caller import where
from samebits.rank.checks.idle_loops import NOT_ZEROED, Updates, empty_lanes
from samebits.rank.checks.labels import look_around_lane, note_gradients
from samebits.rank.checks.lane_exchanges import LaneExchanges
from samebits.rank.checks.unprepared_optimizers import UnpreparedOptimizers
from samebits.rank.checks.unreduced_metrics import Share, UnreducedMetrics, left_early, sentence
from samebits.rank.checks.written_files import WrittenFiles
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.run_state import RunState
from samebits.rank.process_group.group import num_exchanges


class ScriptChecks:
    """Those of one run.

    Args:
        loop_state: where the run is.
        folder: the run's own, whose files are its own too.
        rank: this one.
        world_size: of several ranks, files that more than one writes are found.
    """

    def __init__(self, loop_state: LoopState, folder: RunFolder | None, rank: int, world_size: int) -> None:
        prepared, position = loop_state.prepared, loop_state.position
        self.run: RunState
        """Set once it is made."""
        self._rank, self._looks = rank, loop_state.looks
        self._optimizers = UnpreparedOptimizers(position, prepared.models, lambda: self.run.grow())  # noqa: PLW0108 - set later
        self._exchanges = LaneExchanges(position)
        self._metrics = UnreducedMetrics()
        self._updates = Updates()
        self._has_empty_lanes = False
        self._files = WrittenFiles(folder.path if folder else None) if world_size > 1 else None

    def take(self, optimizer: Optimizer) -> None:
        self._optimizers.take(optimizer)

    def before_step(self) -> None:
        self._updates.steps += 1
        sizes = self.run.loop_state.position.lane_samples
        # The first step of an epoch is a whole one, unless the data set is smaller: then larger lanes than others have one.
        is_first = not (self._has_empty_lanes or self.run.components.step_timer.step_in_epoch)
        if is_first and 0 in sizes and max(sizes) == 1:
            self._has_empty_lanes = True
            if self.run.is_users_main:
                say(f"{where()}: {empty_lanes(sizes, self.run.components.transport.world_size)}")
        self.say_shares()

    def begin_pass(self, *, is_first: bool) -> None:
        self._updates.begin_pass()
        if not self._looks.is_over and not self._looks.accumulates:
            note_gradients(self.run, is_first=is_first)

    def end_pass(self) -> None:
        models = self.run.loop_state.prepared.models
        self._updates.end_pass(models)

    def before_update(self, optimizer: Optimizer) -> None:
        if self._updates.before_update(optimizer) and self.run.is_users_main:
            say(f"{where()}: {NOT_ZEROED}")

    def say_idle(self) -> None:
        text = self._updates.missing(
            has_loss=self.run.components.step_timer.num_losses > 0,
            has_optimizer=any(isinstance(one, Optimizer) for one in self.run.loop_state.prepared.taken),
        )
        if text and self.run.is_users_main:
            say(f"{where()}: {text}")

    def enter_lane(self) -> None:
        self._optimizers.begin_lane()
        if not self._looks.is_over:
            look_around_lane(self.run, is_end=False)
        self._exchanges.enter_lane()

    def leave_lane(self) -> None:
        self._exchanges.leave_lane()
        if not self._looks.is_over:
            look_around_lane(self.run, is_end=True)

    def close_lane(self) -> None:
        self._optimizers.end_lane()

    def enter_loss_over_batch(self) -> None:
        self._exchanges.enter_lane()

    def leave_loss_over_batch(self) -> None:
        self._exchanges.leave_lane()

    def begin_evaluation(self) -> None:
        self._optimizers.begin_lane()
        self._metrics.begin(num_exchanges())

    def end_evaluation(self, line: str, num_seen: int, num_samples: int, *, is_counted: bool) -> None:
        self._metrics.end(Share(line, num_seen, num_samples, is_counted))

    def left_evaluation(self, line: str) -> None:
        self._metrics.leave(line)

    def put_together(self, *, only_counted: bool = False) -> None:
        self._metrics.put_together(only_counted=only_counted)

    def say_shares(self) -> None:
        said = [*map(left_early, self._metrics.take_left()), *map(sentence, self._metrics.take(num_exchanges))]
        for text in said if self._rank == 0 else ():
            say(text)

    def written(self) -> dict[str, str]:
        return self._files.take() if self._files is not None else {}

    def say_written(self, everyone: Sequence[dict[str, Any]]) -> None:
        for text in self._files.conclude(everyone) if self._files is not None else ():
            if self._rank == 0:
                say(text)

    def close(self) -> None:
        self._optimizers.close()
        self._exchanges.close()
        if self._files is not None:
            self._files.close()
