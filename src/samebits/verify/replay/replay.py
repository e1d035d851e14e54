"""Make the steps of a run again, from the newest state before the wanted one, and compare what they log."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.record_facts import command_facts
from samebits.launcher.trials.trials import Trial, Trials
from samebits.machine.regular_file import read_regular
from samebits.protocol.journal.ring import JournalReader
from samebits.protocol.record.reading import FILE, Record, read_record
from samebits.protocol.recording import REPLAY
from samebits.protocol.run_folder import MOST_BYTES, STATES, read_lines
from samebits.protocol.saving import NEVER, Saving
from samebits.protocol.script_files import ScriptFiles
from samebits.verify.audit.compare import first_difference
from samebits.verify.replay.past_run import PastRun, copy_state, seen_in
from samebits.verify.replay.values import ABSENT, Compared, compare_values, logged_in
from samebits.verify.result import CANNOT_TELL


@dataclass(frozen=True)
class Wanted:
    """Which step, and what is wanted of it."""

    past: PastRun
    step: int
    ranks: int
    rows: bool = False
    pdb: bool = False
    anomaly: bool = False


@dataclass
class Replayed:
    """What came of it."""

    title: str
    step: int
    ranks: int
    lanes: int
    begins_after: int
    """The step after which the state was saved that it began with; 0: at the beginning."""
    why_beginning: str = ""
    """Why it began there, where not for want of a state."""
    has_changed: bool = False
    """Whether the script was changed after the run had begun."""
    compared: Compared = field(default_factory=lambda: Compared(0, 0, 0, ()))
    steps: int = 0
    """Steps that are as the run has recorded them: samples, losses, learning rates."""
    other_step: str = ""
    """The first that is not, in a sentence."""
    passes: list[dict[int, dict[str, Any]]] = field(default_factory=list)
    """Of the step: for each, by lane, its samples, loss and the norm of its gradients."""
    is_there: bool = False
    """Whether the step was made."""
    block: str = ""
    """How the script failed, for people."""
    failed_there: bool = False
    """Whether it failed in the step itself."""
    forward: str = ""
    """The line of the script whose operator has a NaN in its backward, where torch has named it."""
    why: str = ""
    """Why the step was not made, where the script did not fail."""
    kept: str = ""
    """Where the files of the replay are, in a sentence."""

    @property
    def exit_code(self) -> int:
        """0, 1 where something differs or the step itself failed, 125 where the step was not reached."""
        if self.compared.other is not None or self.other_step or self.failed_there:
            return 1
        return 0 if self.is_there else CANNOT_TELL

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        other = self.compared.other
        return {
            "run": self.title,
            "step": self.step,
            "ranks": self.ranks,
            "lanes": self.lanes,
            "begins_after_step": self.begins_after,
            "made": self.is_there,
            "values_compared": self.compared.count,
            "names": list(self.compared.names),
            "difference": vars(other) if other is not None else None,
            "steps_compared": self.steps,
            "other_step": self.other_step,
            "passes": [[{"lane": lane, **row} for lane, row in lanes.items()] for lanes in self.passes],
            "failure": self.block or self.why,
            "forward_line": self.forward,
            "exit_code": self.exit_code,
        }


def begun(wanted: Wanted) -> tuple[Replayed, Path | None]:
    """From where the step is reached: what is known before anything starts, and the state."""
    past = wanted.past
    after, state = past.state_before(wanted.step)
    why = f"no state holds all: {past.lacking[0]}" if past.lacking and past.states else ""
    found = Replayed(past.title, wanted.step, wanted.ranks, past.lanes, after, why, past.changed_since)
    return found, state


def replay(wanted: Wanted, found: Replayed, state: Path | None, trials: Trials) -> None:
    """Make the steps, and note in `found` what came of it."""
    states = trials.base / STATES
    if state is None:
        states.mkdir()
    else:
        copy_state(state, states)
    past = wanted.past
    told = command_facts(past.script, past.args, is_module=past.is_module) if past.record is not None else {}
    asked = {"step": wanted.step, "rows": wanted.rows, "pdb": wanted.pdb, "anomaly": wanted.anomaly, "record": told}
    label = f"steps {found.begins_after + 1} to {wanted.step}"
    trial = trials.run(label, wanted.ranks, past.lanes, {REPLAY: asked}, saving=Saving(str(states), NEVER))
    _note(found, trial, past)
    if past.record is not None:
        _compare_steps(found, trial, past.record)


def _note(found: Replayed, trial: Trial, past: PastRun) -> None:
    found.block = trial.outcome.block
    if (rank := trial.outcome.rank) is not None:
        last = JournalReader(trial.folder.journal(rank)).last()
        found.failed_there = last is not None and last.step == found.step
        found.forward = forward_line(trial.folder.log(rank), past.place / past.script)
    seen = seen_in(trial.folder, trial.num_processes)
    if seen is not None:
        found.passes = seen.passes
        if seen.first not in (0, found.begins_after + 1):
            found.why = f"The state after step {found.begins_after} could not be resumed from."
        elif seen.last < found.step:
            found.why = f"The script came to its end after step {seen.last}."
        found.is_there = not found.why
    whole = range(found.begins_after + 1, found.step if found.is_there else 0)
    found.compared = compare_values(past.logged, logged_in(read_lines(trial.folder.metrics)), whole)


def _compare_steps(found: Replayed, trial: Trial, record: Record) -> None:
    """Compare the steps that were made with what the run has recorded of them."""
    with suppress(UsageError):
        made = read_record(trial.folder.path / FILE)
        last = found.step if found.is_there else min(found.step, made.last)
        difference, found.steps = first_difference(record, made, found.begins_after, last)
        found.other_step = difference.text if difference is not None else ""


def forward_line(log: Path, script: Path) -> str:
    """The innermost line of the script in what torch's anomaly detection has printed; empty where it has printed nothing."""
    with suppress(OSError):
        text = read_regular(log, most_bytes=MOST_BYTES).decode(errors="replace")
        _, found, rest = text.partition("Traceback of forward call that caused the error:")
        places = re.findall(r'File "([^"]+)", line (\d+), in .*\n\s+(.+)', rest.partition(" (Triggered internally")[0])
        users = ScriptFiles.beside(script)
        lines = [f"{Path(file).name}:{number}  {line}" for file, number, line in places if users.has(file)]
        return lines[-1] if found and lines else ""
    return ""


def text_of(value: Any) -> str:
    """A value as it stands in `metrics.jsonl`."""
    return "not finite" if value is None else value if value is ABSENT else json.dumps(value)
