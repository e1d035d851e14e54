"""Schedulers: those that were prepared, and those that nobody prepared, which a start that resumes takes as it makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from samebits.errors import UsageError
from samebits.notices import say
from samebits.rank.checkpoint.parts.part import MADE, Into, Part, Saved, like
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.made_schedulers import MadeScheduler, kept, paired
from samebits.rank.position.preparations import SCHEDULER
from samebits.rank.position.run_state import RunState

KEYS = {"class": str, "made_with": list, "outside": int, "again": bool, "state": dict}

Pairs = list[tuple[MadeScheduler, Mapping[str, Any]]]
"""Each with its part of a state."""


class Schedulers(Part):
    """Both kinds; of those that nobody prepared, which still live may differ between ranks, so rank 0's count."""

    def __init__(self, run: RunState) -> None:
        super().__init__(run)
        self._made = run.loop_state.schedulers
        self._saved: Saved | None = None

    def save(self, into: Into) -> None:
        loop_state, at = self._run.loop_state, into.at
        for label, scheduler in schedulers_of(loop_state):
            into.add_object(label, scheduler, scheduler.state_dict() if at is None else at.states[label])
        if made := loop_state.schedulers.record() if at is None else at.states.get(MADE, []):
            runs_again = into.is_inside or (loop_state.epochs.in_body and not loop_state.epochs.trained)
            record = kept(made, loop_state.schedulers.counts(runs_again=False), runs_again=runs_again)
            bodies = loop_state.schedulers.counts(runs_again=runs_again)
            into.add(MADE, {"bodies": bodies, "made": record}, of_main=True)

    def check(self, saved: Saved) -> None:
        """Where the run grew, those of optimizers that are planned; `check` is called again then."""

        def check(label: str, scheduler: Any) -> None:
            document = saved.document(label)
            check_scheduler(saved, label, scheduler, document["class"], saved.decode(document["state"]))

        for label, scheduler in schedulers_of(self._run.loop_state):
            optimizer = id(getattr(scheduler, "optimizer", scheduler))
            if not saved.waits or optimizer in {*saved.planned, id(scheduler)}:
                saved.plan_if_it_fits(label, scheduler, check)
        if self._saved is None:
            self._saved = saved
            self._read(saved.own(MADE))
            self._check_made(self._present())

    def _read(self, saved: Any) -> None:
        """What the state has of those that nobody prepared. Raises ValueError for what samebits does not write."""
        self._has_record, self._bodies, record = saved is not None, [0, 0], []
        if saved is not None:
            self._bodies, record = saved["bodies"], saved["made"]
        for one in record:
            if {key: type(one[key]) for key in KEYS} != KEYS:
                raise ValueError(one)
        if [type(one) for one in self._bodies] != [int, int]:
            raise ValueError(self._bodies)
        self._outside = {one["outside"]: one for one in record if one["outside"]}
        self._of_bodies = [one for one in record if not one["outside"]]

    @property
    def awaits(self) -> bool:
        """Whether the state has some that this start has not made yet; known after `check`."""
        return bool(self._of_bodies) or len(self._present()) < len(self._outside)

    def _present(self) -> Pairs:
        """Those that this start has made outside of bodies by now and has not loaded, each with its part."""
        return [(one, self._outside[one.outside]) for one in self._made.here() if one.outside in self._outside]

    def _check_made(self, pairs: Pairs) -> None:
        assert self._saved is not None
        for one, record in pairs:
            label = f"{MADE}, of which {type(one.here).__name__}"
            check_scheduler(self._saved, label, one.here, record["class"], record["state"])

    def load(self) -> None:
        """All that is there by now is loaded; the others are, when they are made."""
        for one, _ in self._present():
            del self._outside[one.outside]
        if not self._has_record and (new := [type(one.here).__name__ for one in self._made.here()]):
            self._name(new)
        self._made.loaded, self._made.bodies = self._made.num, [*self._bodies]
        self._run.loop_state.resumption.schedulers = self._take if self._outside or self._of_bodies else None

    def _take(self, must: bool) -> None:
        """Load what has been made since. Raise `UsageError` where what `must` be there by now is not, or another one is."""
        assert self._saved is not None
        here = self._present()
        missing = [
            one["class"] for number, one in self._outside.items() if number not in {own.outside for own, _ in here}
        ]
        mine = [one for one in self._made.here() if not one.outside and one.number > self._made.loaded]
        try:
            pairs, left = paired(self._of_bodies, mine, runs_again=self._saved.counters.get("inside") is not None)
        except UsageError:
            if must:
                raise
            return
        if not must and (missing or left):
            return
        if missing:
            raise UsageError(
                f"The state has a scheduler ({', '.join(missing)}) of a prepared optimizer, and this start has not made it "
                "before its first step.",
                "Make the same schedulers in the same order.",
            )
        self._run.loop_state.resumption.schedulers = None
        self._made.undo_writes(one.here.optimizer for one, _ in (*here, *pairs) if one.here is not None)
        before = len(self._saved.steps)
        try:
            self._check_made([*here, *pairs])
        except UsageError as error:
            raise self._saved.unfit(error) from None
        self._saved.load(before)
        for one, saved in pairs:
            if not saved["again"]:
                one.body = -1, -1
        self._name(left)

    def _name(self, left: list[str]) -> None:
        if left:
            self._run.loop_state.resumption.resumed_without.extend(left)
            if self._run.components.transport.rank == 0:
                say(
                    f"the run has resumed without what the state, or this start, has of {', '.join(left)}: a scheduler that is not "
                    "made again begins anew or is missing."
                )


def schedulers_of(loop_state: LoopState) -> list[tuple[str, Any]]:
    """What else `prepare` took that has a state, by label."""
    return loop_state.prepared.preparations.labelled(SCHEDULER)


def check_scheduler(saved: Saved, label: str, scheduler: Any, kind: str, state: Any) -> None:
    """Refuse the state of another class: torch takes it without a word, and lets it replace methods."""
    mine = type(scheduler).__name__
    if kind != mine:
        raise UsageError(f"the {label} was a {kind}, but the run has a {mine}.", "Use the same one.")
    own = scheduler.state_dict()
    like(label, own, state, may_be_unset=True)
    if strange := [key for key in state if key == "optimizer" or callable(getattr(type(scheduler), key, None))]:
        raise UsageError(
            f"{label}.{strange[0]} is not part of the state of a {mine}.", "Use the scheduler that was saved."
        )
    saved.add(label, scheduler, state, own)
