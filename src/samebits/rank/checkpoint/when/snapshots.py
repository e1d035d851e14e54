"""Snapshots: the newest state of a run, kept in shared memory for a restart of its ranks.

    the first run.epochs, run.steps -> begin        after a restart: the newest state of memory and disk is loaded
    between two steps               -> after_boundary  after steps 1, 2, 4, 8, …: do all ranks keep the same? else there are none
    a pass                          -> is_due, hear rank 0 wants a snapshot; every rank learns it in the same pass
    between two steps               -> after_step   taken, if nothing would be lost: inside the epoch
    a body of run.epochs is over    -> after_body   taken, if it could not be taken before: between epochs

Nobody has asked for snapshots, so they never fail and never say anything. Where a state does not hold what samebits itself
would need, or where there is no room, none is taken, and `snapshots.json` in the run folder says why. A state on the disk
counts as one: where a run saves more often than it would take snapshots, it takes none.
"""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from samebits.errors import PeerLost, RanksDiffer, SamebitsError
from samebits.machine.memory_pressure import available_bytes
from samebits.protocol.journal.signals import Asking
from samebits.protocol.meeting_place import Restart
from samebits.protocol.saving import SnapshotPlace, kept_in, step_of
from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.own_folder import remove
from samebits.protocol.state_files.whole_state import trouble_of
from samebits.rank.caller import where
from samebits.rank.checkpoint.parts.same_on_ranks import SameOnRanks
from samebits.rank.checkpoint.store.checkpointer import AsyncCheckpointer
from samebits.rank.checkpoint.store.resume import load_state, skips_states
from samebits.rank.checkpoint.store.save import save_state
from samebits.rank.checkpoint.store.store import Store
from samebits.rank.checkpoint.when.automatic import Automatic
from samebits.rank.checkpoint.when.pace import FIRST_STEPS, Pace, SavePoint
from samebits.rank.data.loader import own_order
from samebits.rank.position.exact_json import digest
from samebits.rank.position.metrics import keep
from samebits.rank.position.run_state import RunState

COPIES = 3
"""Copies of the state at one moment, at most: that being written from, that being written, and the one before."""
MOST_OF_MEMORY = 0.5
"""Of the memory that is available, what a snapshot may take more: the rest is the run's own."""


def no_room(state_bytes: int, shared_bytes: int, available_bytes: int) -> str:
    """Why a state of this size is not kept; empty when it fits."""
    needed = COPIES * state_bytes
    if (COPIES - 1) * state_bytes > shared_bytes:
        return f"shared memory has {_size(shared_bytes)} free, and a state has {_size(state_bytes)}"
    if needed > available_bytes * MOST_OF_MEMORY:
        return (
            f"{_size(available_bytes)} of memory are available, and {COPIES} copies of the state need {_size(needed)}"
        )
    return ""


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


CALL = "snapshot"

OWN_STATES = "the script loads a state itself"
NO_EPOCHS = "a loop over steps is not the first in a body of run.epochs"


class Snapshots:
    """Those of one run, on one rank.

    Args:
        run: it calls the methods.
        place: the folder, and how often.
        restart: which start of the ranks this is.
        number: of the run among those that the script makes, from 1.
    """

    def __init__(self, run: RunState, place: SnapshotPlace, restart: Restart, number: int) -> None:
        self._run, self._restart = run, restart
        self._store = Store(kept_in(Path(place.folder), number), 1, keeps_finite=False)
        if run.components.transport.rank == 0:
            with suppress(OSError):
                self._store.place.mkdir(mode=0o700, exist_ok=True)
        self._checkpointer = AsyncCheckpointer(1, refusal=self._no_room)
        self._steps, self._pace = place.steps, Pace(place.steps, 0, time.monotonic())
        self._is_requested = self._holds = False
        self._same = SameOnRanks(run)
        self._why_not = self._noted = ""
        """Why there will be no more, as far as this rank knows; why there was none the last time."""
        self._asking = Asking(run.config.folder.journal(run.components.transport.rank)) if run.config.folder else None
        """Through which the launcher may want one at once."""
        self._stall_s = 0.0
        """How long the steps stood still for the newest one."""

    # What `States` calls: its words hold

    def begin(self, automatic: Automatic | None) -> None:
        loop_state = self._run.loop_state
        if loop_state.resumption.has_begun:
            if automatic is not None:
                automatic.begin()
            return
        if loop_state.resumption.has_looked:
            self._stop(OWN_STATES)
        loads = self._restart.number and not self._why_not and not skips_states(self._run)
        kept = self._newest() if loads else None
        beyond = -1 if kept is None else step_of(kept.name) or 0
        loaded = automatic is not None and automatic.begin(beyond)
        loop_state.resumption.has_begun = True
        if kept is not None and not loaded:
            self._run.components.metrics.earlier.has_mine = True
            place = self._store.place / kept.name
            load_state(self._run, place, {}, missing_ok=False, source=kept.rank, is_whole=kept.is_whole)
            if automatic is None:
                loop_state.resumption.resumed = 0, 0  # by the same run
        self._hold(loop_state.resumption.goes_on is not None)
        waits = automatic is not None and automatic.comes_within(FIRST_STEPS)
        self._pace = Pace(self._steps, self._run.components.step_timer.step, time.monotonic(), waits=waits)

    def _hold(self, holds: bool) -> None:
        """Keep values out of metrics.jsonl that the body of an epoch logs once more, before its steps continue."""
        if holds != self._holds:
            self._holds = self._run.components.metrics.is_held = holds

    def enter_steps(self) -> None:
        self._hold(False)

    def hear(self) -> None:
        self._is_requested = True

    def after_step(self, *, ends_epoch: bool) -> None:
        if not self._is_requested:
            return
        self._is_requested = False
        epochs = self._run.loop_state.epochs
        place = self._pace.place(in_body=epochs.in_body, is_first=epochs.is_first, ends_epoch=ends_epoch)
        if place is SavePoint.NOWHERE:
            self._stop(NO_EPOCHS)
        elif place is SavePoint.HERE:
            self._try()

    def after_boundary(self) -> None:
        """The last snapshot is that of this step's end: compare what snapshots would hold. Collective."""
        if problem := self._same.after_step(says=not self._restart.number):
            self._stop(problem)

    def after_body(self) -> None:
        """At the end of a body of `run.epochs`: take one if it is due, or could not be taken before. Collective."""
        is_owed, self._is_requested = self._pace.settle() or self._is_requested, False
        # [Note: where hogwild's ranks agree]
        # Passes exchange nothing under hogwild, but at the end of a body the ranks come together.
        if self._run.config.mesh.asynchronous:
            [is_owed, *_] = self._run.components.transport.all_gather_object(self.is_due(in_pass=False), CALL, where())
        if is_owed:
            self._try()

    def count_saved(self, step: int, at_s: float, cost_s: float) -> None:
        """A state of `step` is on the disk, which counts as a snapshot; see `Pace.took`."""
        self._pace.took(step, at_s, cost_s)

    def end(self) -> None:
        self._checkpointer.drop()

    # How one is taken

    def is_due(self, *, in_pass: bool = True) -> bool:
        """Whether this rank wants all to take one after this step, and none is being written; in a pass, rank 0 decides."""
        run = self._run
        if in_pass and (run.components.transport.rank or run.config.mesh.asynchronous or self._pace.owed):
            return False
        at_once = self._asking is not None and self._asking.takes_snapshot()
        due = at_once or self._pace.is_due(self._run.components.step_timer.step, time.monotonic())
        if self._why_not or not due:
            return False
        self._look()
        return not (self._checkpointer.is_busy or self._why_not)

    def _try(self) -> None:
        """Take one unless a rank objects. Collective: call it on every rank."""
        began_s = time.monotonic()
        mine = self._why_not or own_order(self._run.loop_state.prepared.loaders)
        record: list[str] = self._run.components.transport.all_gather_object(mine, CALL, where())
        if never := next(filter(None, record), ""):
            self._stop(never)
        else:
            self._take(began_s)
        if self._asking is not None:
            self._asking.took_snapshot()
        self._pace.took(self._run.components.step_timer.step, time.monotonic(), time.monotonic() - began_s)

    def _take(self, began_s: float) -> None:
        try:
            save_state(
                self._run,
                self._store.path(self._run.components.step_timer.step),
                {},
                self._checkpointer.take,
                self._checkpointer.offer(),
            )
        except (PeerLost, RanksDiffer):
            raise
        except SamebitsError as error:
            self._stop(str(error))
        else:
            if problem := self._checkpointer.hand_over():
                self._stop(problem)
        self._stall_s = time.monotonic() - began_s

    def _no_room(self, size_bytes: int) -> str:
        try:
            return no_room(size_bytes, shutil.disk_usage(self._store.place).free, available_bytes())
        except OSError as error:
            return f"{self._store.place} cannot be used ({error.strerror})"

    def _look(self) -> None:
        """Learn, on rank 0, what has become of the last one."""
        was_busy = self._checkpointer.is_busy
        if problem := self._checkpointer.look():
            self._stop(problem)
        elif was_busy and not self._checkpointer.is_busy:
            self._pace.cost_s = self._stall_s + self._checkpointer.cpu_s

    def _stop(self, why: str) -> None:
        """There are no more. Others may not know: whoever learns that one is due takes part, and objects."""
        self._why_not = self._why_not or why
        self._note(self._why_not)

    def _note(self, why: str) -> None:
        folder = self._run.config.folder
        if why != self._noted and folder is not None and self._run.components.transport.rank == 0:
            self._noted = why
            keep(folder.snapshots, json.dumps({"why": why}), self._run.components.step_timer)

    def _newest(self) -> _Newest | None:
        """The newest snapshot that is whole, of all nodes. Collective: call it on every rank."""
        transport, position = self._run.components.transport, self._run.config.environment.position
        mine = None
        if position.local_rank == 0:
            mine = next((path for path in self._store.newest_first() if trouble_of(path) is None), None)
        record: list[list[str] | None] = transport.all_gather_object(
            mine and [mine.name, _identity(mine)], CALL, where()
        )
        there = [(step_of(one[0]) or 0, -rank, one) for rank, one in enumerate(record) if one is not None]
        if not there:
            return None
        _, rank, (name, identity) = max(there)
        if mine is not None and mine.name == name and _identity(mine) != identity:
            # [Note: why all but one copy goes]
            # Two nodes may have a snapshot of one step each. All ranks must load the same one.
            remove(mine)
        if position.local_world_size != position.world_size:
            # The other ranks of this node would look at it while it goes.
            transport.barrier(CALL, where())
        return _Newest(name, -rank, is_whole=mine is not None and mine.name == name and mine.is_dir())

    # When another rank is lost

    def forget_older(self) -> None:
        """Keep the newest one of this node alone; nobody else prunes where rank 0 is not."""
        self._store.prune()

    def last_place(self, step: int) -> Path | None:
        """Where this rank may write one of the last finished step, on its own; None where it may not. Raises OSError."""
        if self._why_not or own_order(self._run.loop_state.prepared.loaders) or not self._same.is_known():
            return None
        self._store.place.mkdir(mode=0o700, exist_ok=True)
        tensors = [tensor for model in self._run.loop_state.prepared.models for tensor in model.state_dict().values()]
        return None if self._no_room(sum(one.nbytes for one in tensors)) else self._store.path(step)


@dataclass(frozen=True)
class _Newest:
    """The snapshot from which all ranks resume."""

    name: str
    rank: int
    """The first rank of the first node that has it."""
    is_whole: bool
    """Whether this rank has read every byte of it, on its own node."""


def _identity(path: Path) -> str:
    """The same for two that are equal to the bit."""
    found = StateFolder(path).read_manifest()
    return digest(str(found[1].files)) if found is not None else ""
