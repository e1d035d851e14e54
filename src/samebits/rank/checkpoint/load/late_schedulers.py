"""What a state has of schedulers that nobody prepared, and how a start that resumes takes it, as it makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from samebits.errors import UsageError
from samebits.notices import say
from samebits.rank.position.made_schedulers import MadeScheduler, paired
from samebits.rank.position.run_state import RunState

KEYS = {"class": str, "made_with": list, "outside": int, "again": bool, "state": dict}

Take = Callable[[list[tuple[MadeScheduler, Mapping[str, Any]]]], None]
"""Loads parts of the state into schedulers. Raises `UsageError` for one that does not fit."""


class LateSchedulers:
    """Those of one state.

    Args:
        run: the run that resumes.
        saved: the state's document; None where it has none.

    Raises:
        ValueError: for what samebits does not write.
    """

    def __init__(self, run: RunState, saved: Any) -> None:
        self._run, self._made = run, run.loop_state.schedulers
        self.has_record = saved is not None
        self._bodies: list[int] = saved["bodies"] if saved is not None else [0, 0]
        record: list[dict[str, Any]] = saved["made"] if saved is not None else []
        for one in record:
            if {key: type(one[key]) for key in KEYS} != KEYS:
                raise ValueError(one)
        if [type(one) for one in self._bodies] != [int, int]:
            raise ValueError(self._bodies)
        self._outside = {one["outside"]: one for one in record if one["outside"]}
        self._of_bodies = [one for one in record if not one["outside"]]
        self._is_inside = False

    def present(self) -> list[tuple[MadeScheduler, Mapping[str, Any]]]:
        """Those that this start has made outside of bodies by now and has not loaded, each with its part."""
        return [(one, self._outside[one.outside]) for one in self._made.here() if one.outside in self._outside]

    def begin(self, take: Take, *, is_inside: bool) -> None:
        """All that is there is loaded; `take` loads those that are still to come. `is_inside`: whether a body runs again."""
        for one, _ in self.present():
            del self._outside[one.outside]
        if not self.has_record and (new := [type(one.here).__name__ for one in self._made.here()]):
            self._name(new)
        self._made.loaded, self._made.bodies, self._is_inside = self._made.num, [*self._bodies], is_inside
        waits = self._outside or self._of_bodies
        self._run.loop_state.resumption.schedulers = (lambda must: self._take(take, must=must)) if waits else None

    def _take(self, take: Take, *, must: bool) -> None:
        """Load what has been made since. Raise `UsageError` where what `must` be there by now is not, or another one is."""
        here = self.present()
        missing = [
            one["class"] for number, one in self._outside.items() if number not in {own.outside for own, _ in here}
        ]
        mine = [one for one in self._made.here() if not one.outside and one.number > self._made.loaded]
        try:
            pairs, left = paired(self._of_bodies, mine, runs_again=self._is_inside)
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
        take([*here, *pairs])
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
