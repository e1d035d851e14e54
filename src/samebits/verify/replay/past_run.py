"""A run that was: what it ran, what it logged, and which of its states a step can be reached from.

All of it is read as data; it may be half written, or not ours.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.states.description import COMPLETE, summary_of
from samebits.launcher.states.places import Found, states_by_step
from samebits.launcher.watch.places import Run, run_at
from samebits.machine.regular_file import is_regular
from samebits.machine.visible import visible
from samebits.protocol.branch import Course
from samebits.protocol.layout.mesh import MOST_LANES
from samebits.protocol.record.reading import FILE, Record, read_record
from samebits.protocol.run_folder import STATES, RunFolder, read_json, read_lines, unsaved
from samebits.protocol.state_files.manifest import NAME
from samebits.protocol.state_files.whole_state import open_state
from samebits.verify.replay.values import Logged, logged_in

NOT_LOOKED = "the run did not come so far that anybody had looked at what its states lack."


@dataclass(frozen=True)
class PastRun:
    """One start of a run."""

    run: Run
    script: str
    is_module: bool
    args: tuple[str, ...]
    place: Path
    """Its working directory."""
    lanes: int
    threads: int
    device: str
    needs_ranks: int
    """How many ranks it must have again; 0 for any number."""
    arithmetic: Mapping[str, Any]
    """precision, numerics and allow, as they were decided."""
    logged: Logged
    lacking: tuple[str, ...]
    """What no state of it holds, in sentences."""
    states: Mapping[int, Path]
    """By the step after which each was saved."""
    course: Course
    """With which state it began, and which steps it passed over."""
    record: Record | None
    """What it has recorded, where it has."""

    @property
    def title(self) -> str:
        folder = self.run.folder.path
        named = folder.parent.parent.name if (folder.parent / STATES).is_dir() else ""
        return visible(f"{folder.parent.name}/{folder.name}" if named else folder.name)

    @property
    def changed_since(self) -> bool:
        """Whether the script was written to after the run had begun."""
        with suppress(OSError):
            began_s = self.run.folder.plan.stat().st_mtime
            return not self.is_module and (self.place / self.script).stat().st_mtime > began_s
        return False

    def state_before(self, step: int) -> tuple[int, Path | None]:
        """The newest whole state from which `step` can be reached, and the step after which it was saved; 0 and None: none.

        A state that lacks something is none: what was not saved would be missing in silence.
        """
        if self.lacking:
            return 0, None
        for saved in sorted((one for one in self.states if one < step), reverse=True):
            row = summary_of(Found(self.states[saved]))
            if row is not None and row["files"] == COMPLETE:
                return saved, self.states[saved]
        return 0, None


def past_run(word: str, step: int, runs: Path) -> PastRun:
    """The run that `word` names; of a run with several starts the newest one that logged something in `step`, else the newest.

    Raises:
        UsageError: when there is none, or it cannot be made again.
    """
    newest = run_at(word, runs)
    for run in _starts(newest):
        logged = logged_in(read_lines(run.folder.metrics))
        if step in logged:
            return _described(run, logged)
    return _described(newest, logged_in(read_lines(newest.folder.metrics)))


def _starts(newest: Run) -> Sequence[Run]:
    """All starts of the same run, the newest first."""
    place = newest.folder.path.parent
    if not (place / STATES).is_dir():
        return [newest]
    folders = [one.parent for one in place.glob("*/plan.json")]
    folders.sort(key=lambda one: (one / "plan.json").stat().st_mtime_ns, reverse=True)
    return [run_at(str(one), place) for one in folders]


def _described(run: Run, logged: Logged) -> PastRun:
    plan, decided = read_json(run.folder.plan), read_json(run.folder.decided)
    name = visible(str(run.folder.path))
    # The process goes to the script's folder.
    run = replace(run, folder=RunFolder(run.folder.path.absolute()))
    not_ours = UsageError(f"{name} is not a run folder of this version.", "Name another run.")
    if plan.get("function"):
        raise UsageError(f"{name} called a function of a program, which cannot be called again.", "Name another run.")
    if not decided:
        raise UsageError(
            f"{name} never came to samebits.init(), so nothing makes its steps again.",
            "Name a run whose script calls samebits.init(), or one of Accelerate or the Trainer.",
        )
    try:
        arithmetic = decided["arithmetic"]
        found = PastRun(
            run,
            plan["script"] or plan["module"],
            plan["script"] is None,
            tuple(map(str, plan["args"])),
            Path(plan["folder"]),
            int(decided["lanes"]),
            int(decided["threads"]),
            str(arithmetic["device"]),
            run.ranks if decided["ranks_are_fixed"] else 0,
            {key: arithmetic[key] for key in ("precision", "numerics", "allow")},
            logged,
            tuple(unsaved(run.folder, "sentences")) if run.folder.unsaved.exists() else (NOT_LOOKED,),
            _states_of(run.folder, decided),
            Course.read(plan),
            _record_of(run.folder),
        )
        not_exact = decided["not_exact"]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise not_ours from None
    if not 0 < found.lanes <= MOST_LANES:
        raise not_ours
    if not_exact:
        raise UsageError(f"{name} has no bits that could come again: {visible(str(not_exact))}", "Name another run.")
    if not found.place.is_dir():
        raise UsageError(
            f"{name} ran in {visible(str(found.place))}, which is not there.",
            "Put the script and its data back there.",
        )
    return found


def _record_of(folder: RunFolder) -> Record | None:
    """A record whose chain does not hold, or that is none, is none."""
    for place in (folder.path, folder.path.parent):
        with suppress(UsageError):
            record = read_record(place / FILE)
            return None if record.broken or record.differs is not None else record
    return None


def _states_of(folder: RunFolder, decided: Mapping[str, Any]) -> dict[int, Path]:
    places = [folder.path.parent / STATES, Path(str(decided.get("states") or folder.path / STATES))]
    return {step: path for place in reversed(places) for step, path in states_by_step(place).items()}


def copy_state(state: Path, place: Path) -> None:
    """Put a copy of a state into the folder `place`, so that nothing of the run is touched. Raises UsageError."""
    copy = place / state.name
    try:
        copy.mkdir(parents=True)
        _, manifest = open_state(state)
        for name in (NAME, *manifest.files):
            # Links may lead anywhere, and nothing else is the state's.
            if is_regular(state / name):
                shutil.copy2(state / name, copy, follow_symlinks=False)
    except OSError as error:
        problem = f"{visible(str(state))} cannot be copied to {place}: {error.strerror}."
        raise UsageError(problem, "Set TMPDIR to a folder with more space.") from None


@dataclass(frozen=True)
class Seen:
    """What the ranks of a replay saw."""

    first: int
    """The step that they began with; 0 where they made none."""
    last: int
    """The step that they ended behind."""
    passes: list[dict[int, dict[str, Any]]]
    """Of the last step: for each pass, by lane, its samples, loss and the norm of its gradients."""


def seen_in(folder: RunFolder, num_ranks: int) -> Seen | None:
    """What the ranks have written; None where they did not come to their end."""
    passes: list[dict[int, dict[str, Any]]] = []
    first = last = 0
    for rank in range(num_ranks):
        try:
            seen = json.loads(folder.replayed(rank).read_text())
        except (OSError, ValueError):
            return None
        first, last = seen["first"], seen["last"]
        for number, lanes in enumerate(seen["passes"]):
            passes += [{}] * (number + 1 - len(passes))
            passes[number] = {**passes[number], **{int(lane): row for lane, row in lanes.items()}}
    return Seen(first, last, [dict(sorted(lanes.items())) for lanes in passes])
