"""What is audited: a record, the states beside it, and the script that the auditor names. All of it is read as data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.errors import SamebitsError, UsageError
from samebits.launcher.states.places import states_by_step
from samebits.machine.visible import visible
from samebits.protocol.branch import Course
from samebits.protocol.layout.mesh import MOST_LANES
from samebits.protocol.record.reading import FILE, Record, read_record
from samebits.protocol.run_folder import STATES, read_json
from samebits.protocol.state_files.manifest import UNHASHED, Manifest, damage, problem_of
from samebits.protocol.state_files.whole_state import open_state

NAME_IT = "Name the script and its arguments behind the record: `samebits audit RECORD train.py ARGS`."
PLAN = "plan.json"
MOST_THREADS = 1024
PRECISIONS = ("32", "bf16-mixed", "16-mixed")
KINDS = ("exact", "portable")


@dataclass(frozen=True)
class SavedState:
    """A state beside a record."""

    step: int
    files: Mapping[str, str]
    """The SHA-256 of each, as its manifest or the record has it."""
    path: Path | None = None
    """None where only the record knows it."""
    manifest: Manifest | None = None

    @property
    def can_begin(self) -> bool:
        """Whether a run can begin with it: it lacks nothing, and somebody looked."""
        return self.manifest is not None and not self.manifest.facts.get("without")

    def trouble(self) -> str:
        """How it is not what its manifest says; reads every byte."""
        if self.path is None or self.manifest is None:
            return ""
        if UNHASHED in self.files.values():
            return f"the state after step {self.step} has files without a SHA-256"
        found = damage(self.path, self.manifest)
        return problem_of(found) if found is not None else ""


@dataclass(frozen=True)
class Checked:
    """All that an audit has."""

    title: str
    record: Record
    states: Mapping[int, SavedState]
    damaged: Mapping[int, str]
    """By step: why a state that is there is none."""
    script: str
    is_module: bool
    args: tuple[str, ...]
    place: Path
    """The working directory."""
    names_script: bool
    """Whether the auditor named the script; otherwise the run folder did."""

    @property
    def first(self) -> int:
        """The first step that the record is about."""
        return self.record.first

    @property
    def begins(self) -> list[int]:
        """The steps behind which a run can begin, 0 for the beginning."""
        found = [one.step for one in self.states.values() if one.can_begin]
        return [*([0] if self.first == 1 else []), *sorted(found)]

    def course(self) -> Course:
        """With which state the run began, and which steps it passed over. Raises UsageError for what no run writes."""
        try:
            return Course.read(self.record.starts[-1] if self.record.starts else {})
        except ValueError:
            problem = f"The start in {visible(str(self.record.path))} is none that samebits records."
            raise UsageError(problem, "Name another record.") from None

    def settings(self) -> dict[str, Any]:
        """Lanes, threads, device and arithmetic of the run. Raises UsageError for what no run writes."""
        found = self.record.conditions_of(next(iter(self.record.lines), 0))
        lanes, threads, allow = found.get("lanes"), found.get("threads"), found.get("allow")
        words = found.get("precision"), found.get("numerics")
        is_ours = (
            type(lanes) is int
            and 0 < lanes <= MOST_LANES
            and type(threads) is int
            and 0 < threads <= MOST_THREADS
            and words[0] in PRECISIONS
            and words[1] in KINDS
            and allow == []
            and isinstance(found.get("device"), str)
        )
        if not is_ours:
            raise UsageError(
                f"The conditions in {visible(str(self.record.path))} are none under which samebits records a run.",
                "Name another record.",
            )
        device = "cpu" if found["device"] == "cpu" else "cuda"
        return {
            "lanes": lanes,
            "threads": threads,
            "device": device,
            "precision": words[0],
            "numerics": words[1],
            "allow": "",
        }


def record_at(word: str, runs: Path) -> Path:
    """The record that a word names: a file, a folder that has one, or a run.

    Raises:
        UsageError: when there is none.
    """
    for place in (Path(word), runs / word):
        with suppress(OSError, ValueError):
            if place.is_dir() and (place / FILE).is_file():
                return place / FILE
            if place.is_file():
                return place
    name = visible(word)
    with suppress(OSError, ValueError):
        if any(place.is_dir() for place in (Path(word), runs / word)):
            raise UsageError(
                f"{name} has no record.", "Record a run from its beginning: `samebits run --record SCRIPT`."
            )
    raise UsageError(f"There is no run and no record {name}.", "Name a run that was recorded, or a record's folder.")


def checked(word: str, words: Sequence[str], runs: Path, *, is_module: bool, replays: bool = True) -> Checked:
    """Read the record that `word` names, and find its states; `words` are script and arguments.

    Where nothing `replays`, nobody needs to name them.

    Raises:
        UsageError: with the fix.
    """
    path = record_at(word, runs)
    record = read_record(path)
    states, damaged = saved_states(record)
    title = path.parent.name if path.name == FILE else path.name
    if words or not replays:
        script, *args = words or ("",)
        place = Path.cwd()
        return Checked(title, record, states, damaged, script, is_module, tuple(args), place, names_script=True)
    script, own_module, own_args, place = _of_run(record, runs)
    return Checked(title, record, states, damaged, script, own_module, own_args, place, names_script=False)


def _of_run(record: Record, runs: Path) -> tuple[str, bool, tuple[str, ...], Path]:
    """Script, arguments and folder, as a run folder says: only of this user's own run, in the folder of all runs.

    What came from elsewhere may have a plan too: whoever made it would choose what runs here.
    """
    path, plan = record.path, _plan_of(record, runs)
    if plan is None:
        raise UsageError(
            f"{visible(str(path))} is of no run of yours in {visible(str(runs))}, so nobody says what to run.", NAME_IT
        )
    script, args, folder = plan.get("script") or plan.get("module"), plan.get("args"), plan.get("folder")
    is_whole = isinstance(script, str) and isinstance(args, list) and isinstance(folder, str)
    if not is_whole or plan.get("function"):
        raise UsageError(f"The run folder of {visible(str(path))} does not name a script.", NAME_IT)
    place = Path(str(folder))
    if not place.is_dir():
        raise UsageError(f"The run was made in {visible(str(place))}, which is not there.", NAME_IT)
    return str(script), not plan.get("script"), tuple(map(str, args or ())), place


def _plan_of(record: Record, runs: Path) -> dict[str, Any] | None:
    """Of the newest start with the arguments that were recorded last: later ones may have failed before their first step."""
    wanted = record.starts[-1].get("arguments") if record.starts else None
    with suppress(OSError):
        found = [one for one in _plans(record.path, runs) if one.is_file() and not one.is_symlink()]
        mine = [one for one in found if one.stat().st_uid == record.path.stat().st_uid == os.geteuid()]
        plans = [read_json(one) for one in sorted(mine, key=lambda one: one.stat().st_mtime_ns, reverse=True)]
        return next((one for one in plans if one.get("args") == wanted), next(iter(plans), None))
    return None


def _plans(path: Path, runs: Path) -> list[Path]:
    """The plans of a record's run, where it lies in the folder of all runs."""
    place, all_runs = path.parent.resolve(), runs.resolve()
    if place.parent != all_runs:
        return []
    own = [place / PLAN, *place.glob(f"*/{PLAN}")]
    if any(map(Path.is_file, own)):
        return own
    # A script that names its run itself has its run folder beside that.
    states = str(place / STATES)
    return [one / PLAN for one in all_runs.iterdir() if read_json(one / "decided.json").get("states") == states]


def saved_states(record: Record) -> tuple[dict[int, SavedState], dict[int, str]]:
    """The states beside a record, and those that it names, by step; and why one that is there is none."""
    found = {step: SavedState(step, files) for step, files in record.states.items() if record.link(step)}
    damaged: dict[int, str] = {}
    for step, path in sorted(states_by_step(record.path.parent / STATES).items()):
        if not (record.link(step) or _comes_before(record, step)):
            continue
        try:
            place, manifest = open_state(path)
        except SamebitsError as error:
            damaged[step] = problem_of(error)
            continue
        files = {name: file.sha256 for name, file in manifest.files.items()}
        if step in record.states and dict(record.states[step]) != files:
            damaged[step] = f"the state after step {step} is not the one that the record names"
            continue
        found[step] = SavedState(step, files, place, manifest)
    return dict(sorted(found.items())), damaged


def _comes_before(record: Record, step: int) -> bool:
    """Whether the record begins behind it: a branch begins with a state of its parent."""
    return step + 1 == record.first
