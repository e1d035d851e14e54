"""The state at the beginning of a step, for as long as the step is under way: what has changed since, and how to write it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

from samebits.protocol.state_files.folder import StateFolder
from samebits.rank.checkpoint.parts.changes import Bits, Small, Versions, versions_of
from samebits.rank.checkpoint.parts.optimizers import optimizers_of
from samebits.rank.checkpoint.parts.position import counters
from samebits.rank.checkpoint.store.save import write_alone
from samebits.rank.look.frames import may_write_uncounted
from samebits.rank.position.epoch_count import InsideEpoch
from samebits.rank.position.moment import Moment
from samebits.rank.position.run_state import RunState

CHANGED = "the script has changed weights or tracked objects since the last step, before the lanes of this one"
UNHEARD = "a tally holds what only the dead rank knew"


class StepSnapshot:
    """That of one rank."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.moment: Moment | None = None
        """None before the first one."""
        self._written: Versions | Bits = Versions(run.loop_state)
        """What changes with every write of the script to what a state holds."""
        self.small = Small.of(run.loop_state)
        self._of_updates: list[Any] = []
        self._of_shared: list[Any] = []
        self._of_lanes: list[Any] = []
        self._gradients: tuple[list[int], list[int]] = [], []
        """Which there were, and how often each had been written to."""
        self._tallies = 0

    def look_at_source(self) -> None:
        """Compare bits from here on, if the script writes what torch does not count. Call it inside the loops."""
        if may_write_uncounted():
            self._written = Bits(self._run.loop_state)

    def note(self, inside: InsideEpoch, *, keeps_streams: bool) -> None:
        """The run can resume from here.

        Args:
            inside: where in the epoch.
            keeps_streams: whether what comes next draws from the random streams of here; a step has its own.
        """
        loop_state, streams = self._run.loop_state, self._run.components.streams
        loop_state.prepared.members.follow()
        self.small = Small.of(loop_state)
        self._of_updates, self._of_lanes = self._written.of_updates(), self._written.of_lanes()
        self._of_shared = self._shared(self.small)
        self._gradients, self._tallies = self._gradients_now(), loop_state.tallies.changes
        record = counters(self._run, inside, with_tallies=keeps_streams)
        snapshot, body = streams.snapshot() if keeps_streams else None, loop_state.epoch.body_streams
        self.moment = Moment(
            counters=record,
            body_streams=body,
            streams=snapshot,
            states=self.small.states,
            values=self.small.values,
            tracked=self.small.tracked,
            modes=loop_state.modes(),
            lines=self._run.components.metrics.recent(self._run.components.step_timer.step),
            recorded=loop_state.recorded,
        )

    def _gradients_now(self) -> tuple[list[int], list[int]]:
        """Those that there are, and how often each was written to."""
        parameters = self._run.loop_state.prepared.members.parameters
        found = [one for one in map(_grad, parameters) if one is not None]
        return list(map(id, found)), list(map(_written, found))

    def change(self) -> str:
        """What the script has changed since then and would change once more; empty for nothing.

        Call it before the lanes, which write to buffers; ask `updated` where a rank has died, in the lanes or behind them.
        """
        if self.moment is None:
            return ""
        if self.small.objection:
            return self.small.objection
        self._run.loop_state.prepared.members.follow()
        if self._written.of_lanes() != self._of_lanes:
            return CHANGED
        now = self._gradients_now()
        # [Note: gradients that are gone are no change]
        # The script has dropped them (`zero_grad`), and will do so again after a restart. Others than then are a change.
        if any(now) and now != self._gradients:
            return CHANGED
        if "tallies" not in self.moment.counters and self._run.loop_state.tallies.changes != self._tallies:
            return UNHEARD
        return ""

    def updated(self) -> str:
        """The same of what nobody may write to from the step's beginning to the loss: weights, the states of optimizers,
        tracked modules, and what is tracked or in `run.state` and too large to be copied.
        """
        self._run.loop_state.prepared.members.follow()
        if self.moment is None:
            return ""
        if self._written.of_updates() != self._of_updates:
            return CHANGED
        # Asked of the objects of now: a script may also have put another tensor in the place of one.
        if self._of_shared and self._shared(Small.of(self._run.loop_state)) != self._of_shared:
            return CHANGED
        return ""

    def _shared(self, small: Small) -> list[Any]:
        return versions_of(small.shared, by_bits=isinstance(self._written, Bits)) if small.shared else []

    def write(self, folder: Path, taken_s: float | None) -> None:
        """Write the state of then, without the others.

        Raises:
            OSError: when it cannot be written.
            EnvironmentFailure: when somebody else is writing there.
        """
        moment = self.moment
        assert moment is not None
        if "tallies" not in moment.counters:
            moment.counters = {**moment.counters, "tallies": self._run.loop_state.tallies.encode(inside=True)}
        moment.counters = {**moment.counters, "lines": list(moment.lines), "recorded": moment.recorded}
        with self._options_of_then():
            write_alone(self._run, StateFolder(folder), moment, taken_s)

    @contextmanager
    def _options_of_then(self) -> Iterator[None]:
        """Let the optimizers have the options that they had at the moment."""
        now = Small.of(self._run.loop_state)
        self._set_options(self.small)
        try:
            yield
        finally:
            self._set_options(now)

    def _set_options(self, small: Small) -> None:
        for (_, optimizer), groups in zip(optimizers_of(self._run.loop_state), small.options, strict=True):
            for group, options in zip(optimizer.param_groups, groups, strict=True):
                group.update(options)


_grad, _written = attrgetter("grad"), attrgetter("_version")
