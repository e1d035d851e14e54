"""What a rank keeps for the death of another one: the last place from which a new rank can go on.

    run.epochs, run.steps       -> begin          a replacement takes over what the others left
    a body of run.epochs begins -> enter_body
    between two steps           -> enter_boundary
    the next step has begun     -> enter_step
    the epochs are over         -> leave_epochs

Models and optimizers are not copied: until a step's gradients are exchanged, every survivor holds them as they were when
the step began.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from lockstep.checkpoint.folder import StateFolder
from lockstep.errors import WorldError
from lockstep.handover.hidden_output import forget
from lockstep.handover.run_folder import RunFolder, write_private
from lockstep.process_group.default_group import num_exchanges
from lockstep.run.outlive.beginning import UNHEARD, Beginning
from lockstep.run.outlive.others import Others
from lockstep.run.position.inside_epoch import InsideEpoch
from lockstep.run.run_state import NoRescue, RunState
from lockstep.run.saving.load_plan import made
from lockstep.transport.history import Part
from lockstep.transport.outliving import OutlivingTransport

STATE, NOTES = "state", "notes.json"

LOADING = "the ranks were loading a state"
SECOND_LOOP = "the script is in a second loop over steps, in one body of run.epochs"
OWN = "the script has changed {}, which a new rank would not have; keep it in run.state, a tally or run.track"
LEFT = "the script has left its loop over steps"
LEFT_EPOCHS = "the script has left its loop over epochs"


class _Place(IntEnum):
    """Places from which a new rank can go on, in the order around one step."""

    LAST_STEP = 1
    OUTSIDE = 2
    BODY = 3
    STEP = 4


class Rescue(NoRescue):
    """What one rank knows.

    Args:
        run: it calls the methods.
        transport: the run's.
        folder: the run's.
        left: what the others left, for a replacement.
    """

    is_on = True

    def __init__(self, run: RunState, transport: OutlivingTransport, folder: RunFolder, left: Path | None) -> None:
        self._run, self._transport, self._left = run, transport, left
        self._beginning = Beginning(run)
        self._others = Others(folder, transport.rank, transport.world_size)
        self._has_looked = False
        self._has_begun = False
        if left is not None:
            notes = json.loads((left / NOTES).read_text())
            if (left / STATE).exists():
                run.machinery.metrics.earlier.keep_all()
            run.machinery.metrics.catch_up(notes["metrics"])
        self._seen: int | None = None
        """`Streams.seen` of the others in the step that this replacement takes part in first."""

    # What the loops call

    def begin(self, load: Callable[[], None]) -> None:
        """Before the first epoch or step: go on from what the others left, or from what `load` loads."""
        if self._has_begun:
            load()
            return
        self._has_begun = True
        if self._left is not None and (self._left / STATE).exists():
            self._take_over(self._left)
            return
        with self._transport.history.unkept(LOADING):
            load()

    def enter_body(self) -> None:
        """A body of `run.epochs` begins."""
        self._enter(Part.BODY)
        self._beginning.note(None, keeps_streams=True)
        self._reach(_Place.BODY)

    def enter_boundary(self, inside: InsideEpoch, *, is_last: bool) -> None:
        """The first step of an epoch is next, or one has ended; after the last one, `is_last`."""
        if not self._run.progress.epochs.is_first:
            self._transport.history.gap = SECOND_LOOP
            return
        if not self._has_looked:
            self._has_looked = True
            self._beginning.look_at_source()
        self._enter(Part.STEP)
        if is_last:
            self._transport.history.gap = self._transport.history.gap or LEFT
        if is_last and self._seen is not None:
            self._run.machinery.streams.seen, self._seen = self._seen, None
        self._beginning.note(inside, keeps_streams=is_last)
        self._reach(_Place.LAST_STEP if is_last else _Place.STEP)

    def enter_step(self) -> None:
        """A step has begun."""
        streams = self._run.machinery.streams
        if self._seen is not None:
            streams.seen, self._seen = self._seen, None
        if self._beginning.moment is not None:
            self._beginning.moment.seen = streams.seen

    def enter_pass(self) -> None:
        """A pass over a step's lanes begins; the lanes themselves change nothing."""
        if not self._transport.history.gap:
            self._transport.history.gap = self._beginning.change()

    def left_steps(self) -> None:
        """The script left its loop over steps."""
        self._transport.history.gap = LEFT

    def leave_epochs(self) -> None:
        """A loop over epochs is over."""
        self._enter(Part.OUTSIDE)
        self._transport.history.gap = self._transport.history.gap or LEFT_EPOCHS
        self._beginning.note(None, keeps_streams=True)
        self._reach(_Place.OUTSIDE)

    def left_epochs(self) -> None:
        """The script left its loop over epochs."""
        self._transport.history.enter(Part.OUTSIDE)
        self._transport.history.gap = LEFT_EPOCHS

    def _reach(self, place: _Place) -> None:
        self._others.mine.note(self._run.machinery.ledger.step, place)
        forget()

    def _enter(self, part: Part) -> None:
        self._transport.history.enter(part)
        if self._run.progress.tallies.are_unheard:
            self._transport.history.gap = UNHEARD

    # What a survivor does

    def objection(self) -> str:
        """Why nobody could go on from here; empty when somebody can."""
        if num_exchanges() != 0:
            return "the script has exchanged something through torch.distributed"
        if lost := self._beginning.small.objection or self._lost_to_a_new_rank():
            return lost
        if self._transport.history.gap:
            return self._transport.history.gap
        return ("" if self._transport.is_whole else self._beginning.change()) or self._beginning.updated()

    def _lost_to_a_new_rank(self) -> str:
        """What the script has done or keeps that no state holds."""
        names = self._run.progress.lacks
        return OWN.format(", ".join(names[:3])) if names else ""

    def objection_to(self, lost: Sequence[int]) -> str:
        """Why these ranks in particular cannot be replaced any more; empty when they can.

        Args:
            lost: the ranks, which have died.
        """
        strategy = self._run.machinery.strategy
        is_spread = self._beginning.moment is not None and strategy.is_spread
        return self._others.objection(lost, is_spread=is_spread, is_hidden=strategy.is_hidden)

    def leave(self, folder: Path) -> None:
        """Leave what a replacement needs in `folder`, which is made.

        Raises:
            OSError: when there is no room.
            WorldError: when this rank cannot find out what the dead one held.
        """
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        moment = self._beginning.moment
        notes = {
            "history": self._transport.history.encode(),
            "seen": moment.seen if moment is not None else 0,
            "resumed": self._run.progress.resumed,
            "metrics": self._run.machinery.metrics.recent(),
            "evaluation": self._beginning.evaluation,
            "strategy": self._run.machinery.strategy.left(),
            "owes": self._run.progress.automatic.owes,
            "owes_snapshot": self._run.progress.snapshots.owes,
        }
        if moment is not None:
            self._beginning.write(folder / STATE)
        write_private(folder / NOTES, json.dumps(notes))

    # What a replacement does

    def _take_over(self, left: Path) -> None:
        """Load what the others left: as a saved state, but without asking them."""
        found = StateFolder(left / STATE).read_manifest()
        if found is None:
            raise WorldError(f"{left} holds no state for this rank.")
        plan = made(self._run, *found, {})
        plan.load_all_but_models()
        plan.load_models()
        notes = json.loads((left / NOTES).read_text())
        self._be_like_the_others(notes["strategy"])
        epochs, steps = notes["resumed"]
        self._run.progress.resumed = epochs, steps
        self._run.progress.has_begun = True
        self._run.progress.automatic.owes = notes["owes"]
        self._run.progress.snapshots.owes = notes["owes_snapshot"]
        self._run.progress.evaluation = notes["evaluation"]
        if self._run.progress.goes_on is None:
            self._run.machinery.streams.seen = notes["seen"]
        else:
            self._seen = notes["seen"]

    def _be_like_the_others(self, left: Any) -> None:
        """Hold what was loaded as they do, now and wherever it is loaded once more."""
        progress, strategy = self._run.progress, self._run.machinery.strategy
        strategy.take_over(left)
        if (again := progress.load_again) is not None:

            def load_again() -> None:
                again()
                strategy.take_over(left)

            progress.load_again = load_again


def history_in(left: Path) -> str:
    """What the ranks that are left have heard."""
    notes: dict[str, str] = json.loads((left / NOTES).read_text())
    return notes["history"]
