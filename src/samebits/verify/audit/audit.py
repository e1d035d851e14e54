"""Make parts of a recorded run again, and compare each step, state and the end with what the record says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from samebits.errors import InternalError, UsageError
from samebits.launcher.record_facts import command_facts
from samebits.launcher.trials.trials import Trial, Trials
from samebits.protocol.record.difference import step_difference
from samebits.protocol.record.lines import STEP
from samebits.protocol.record.reading import FILE, Record, read_record
from samebits.protocol.recording import REPLAY
from samebits.protocol.run_folder import read_lines
from samebits.protocol.saving import NEVER, Saving, state_name
from samebits.protocol.skipped_steps import SkippedSteps
from samebits.protocol.state_files.whole_state import open_state
from samebits.verify.audit.checked import Checked, SavedState
from samebits.verify.audit.compare import conditions_apart, files_apart, first_difference, flipped
from samebits.verify.audit.plan import Segment, Stretch
from samebits.verify.record.report import starts_text
from samebits.verify.replay.past_run import copy_state
from samebits.verify.result import CANNOT_TELL

TO_THE_END = 1 << 53
MOST_NAMED = 3


@dataclass
class Outcome:
    """What came of one stretch."""

    stretch: Stretch
    steps: int = 0
    """That were made and compared."""
    states: list[int] = field(default_factory=list)
    """Those that were compared, by their steps."""
    end: bool = False
    """Whether the bits at the script's end were."""
    difference: str = ""
    """The first one, in a sentence."""
    differs_at: int = 0
    """The step where it is, or behind which."""
    of_another_program: bool = False
    """Whether the run was made with several programs, and that step with another one than was run here."""
    samples: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    """Of the first step that differs, by lane: the indices here, where the samples differ."""
    why: str = ""
    """Why it was not made, in a sentence."""
    block: str = ""
    """How the script failed, for people."""
    machine: list[str] = field(default_factory=list)
    """Conditions here that are others than the recorded ones."""
    code: list[str] = field(default_factory=list)
    """What is another program than the recorded one."""

    @property
    def exit_code(self) -> int:
        """0; 1 where something differs under the same conditions; 125 where nobody can tell."""
        if self.difference:
            return CANNOT_TELL if self.machine or self.of_another_program else 1
        return CANNOT_TELL if self.why else 0


@dataclass
class Audited:
    """What an audit found."""

    title: str
    ranks: int
    num_segments: int
    segments: Sequence[Segment] = ()
    """That were checked."""
    outcomes: list[Outcome] = field(default_factory=list)
    damaged: Mapping[int, str] = field(default_factory=dict)
    forged: str = ""
    """What is wrong with the record itself, in a sentence."""
    gaps: Sequence[tuple[int, int]] = ()
    """Steps that were to be checked and are not in the record."""
    begins_after: int = 0
    """The step behind which the record begins, with a state that nothing here has made."""
    as_the_record_says: str = ""
    """Which steps are passed over and what of a state does not count: the record's choice, not the auditor's."""
    says: str = ""
    """What the record says of the run and nobody checks."""
    replays: bool = True
    """Whether anything is made again at all."""
    kept: str = ""

    @property
    def exit_code(self) -> int:
        """0 MATCH, 1 NO MATCH, 125 CANNOT TELL."""
        codes = [one.exit_code for one in self.outcomes]
        if self.forged or self.damaged or 1 in codes:
            return 1
        return CANNOT_TELL if CANNOT_TELL in codes or self.gaps else 0

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        verdict = {0: "match", 1: "no match", CANNOT_TELL: "cannot tell"}[self.exit_code]
        return {
            "run": self.title,
            "verdict": verdict,
            "exit_code": self.exit_code,
            "ranks": self.ranks,
            "segments": [[one.after + 1, one.last] for one in self.segments],
            "num_segments": self.num_segments,
            "steps": sum(one.steps for one in self.outcomes),
            "states": [step for one in self.outcomes for step in one.states],
            "end": any(one.end for one in self.outcomes),
            "differences": [one.difference for one in self.outcomes if one.difference],
            "samples": {str(lane): list(ids) for one in self.outcomes for lane, ids in one.samples.items()},
            "not_made": [one.why for one in self.outcomes if one.why],
            "conditions": sorted({text for one in self.outcomes for text in one.machine}),
            "program": sorted({text for one in self.outcomes for text in one.code}),
            "record": self.forged,
            "damaged_states": {str(step): why for step, why in self.damaged.items()},
            "gaps": [list(one) for one in self.gaps],
            "begins_after": self.begins_after,
            "as_the_record_says": self.as_the_record_says,
            "the_record_says": self.says,
        }


Differences = Callable[[Path, Path], Mapping[str, Any]]
"""Compares two states tensor by tensor (`rank.checkpoint.format.comparison`)."""


class Audit:
    """Makes stretches again.

    Args:
        checked: what is audited.
        ranks: on how many.
        trials: make the runs.
        differences: what names the tensors of two states that differ.
    """

    def __init__(self, checked: Checked, ranks: int, trials: Trials, differences: Differences) -> None:
        self._checked, self._ranks, self._trials, self._differences = checked, ranks, trials, differences
        self._count = 0

    def make(self, stretch: Stretch, lanes: int) -> Outcome:
        """Make one stretch, and compare it."""
        checked, record = self._checked, self._checked.record
        self._count += 1
        states = self._trials.base / f"states-{self._count}"
        states.mkdir()
        begin = checked.states.get(stretch.begins_after)
        if stretch.begins_after and begin is not None and begin.path is not None:
            copy_state(begin.path, states)
        due = [one for step, one in checked.states.items() if stretch.begins_after < step <= stretch.last]
        to_the_end = record.end is not None and record.end[0] == stretch.last == record.last
        every = f"at {','.join(str(one.step) for one in due)}" if due else NEVER
        told = command_facts(checked.script, checked.args, is_module=checked.is_module)
        asked = {"step": TO_THE_END if to_the_end else stretch.last, "saves": True, "record": {**told, "ids": True}}
        label = f"steps {stretch.begins_after + 1} to {stretch.last}"
        saving = Saving(str(states), every, keep=len(due) + 2)
        trial = self._trials.run(label, self._ranks, lanes, {REPLAY: asked}, saving=saving)
        outcome = Outcome(stretch, block=trial.outcome.block)
        made = _made(trial, outcome)
        if made is None:
            return outcome
        here = made.conditions_of(made.last)
        for then in record.conditions_within(stretch.begins_after, stretch.last):
            machine, code = conditions_apart(then, here)
            outcome.machine, outcome.code = [*outcome.machine, *machine], [*outcome.code, *code]
        self._compare(outcome, trial, made, states, due, to_the_end=to_the_end)
        if outcome.differs_at:
            # As of a run that was resumed with other arguments.
            programs = [conditions_apart(then, here)[1] for _, then in record.conditions]
            is_here = not conditions_apart(record.conditions_of(outcome.differs_at), here)[1]
            outcome.of_another_program = not is_here and [] in programs
        return outcome

    def _compare(
        self, outcome: Outcome, trial: Trial, made: Record, states: Path, due: Sequence[SavedState], *, to_the_end: bool
    ) -> None:
        record, stretch = self._checked.record, outcome.stretch
        found, outcome.steps = first_difference(record, made, stretch.begins_after, stretch.last)
        for one in due:
            if found is not None and found.step <= one.step:
                break
            if text := self._state_apart(one, states / state_name(one.step)):
                outcome.difference, outcome.differs_at = text, one.step
                return
            outcome.states.append(one.step)
        if found is not None and not found.key and outcome.block:
            outcome.why = f"the script failed in or behind step {made.last}"
            return
        if found is not None:
            outcome.difference, outcome.differs_at = found.text, found.step
            outcome.samples = _samples_in(trial, found.step, found.lanes)
            return
        if to_the_end and record.end is not None:
            if made.last > record.last:
                outcome.difference = (
                    f"the run ends behind step {record.last} in the record, and goes on to step {made.last} here"
                )
                return
            outcome.end = made.end is not None
            if made.end is None:
                outcome.why = f"the script failed behind step {made.last}"
            elif made.end[1] != record.end[1]:
                outcome.difference = f"the model at the end has bits {_short(record.end[1])} in the record, and {_short(made.end[1])} here"
        _control(record, stretch)

    def _state_apart(self, recorded: SavedState, made: Path) -> str:
        """How a state differs from the one that was made here, in a sentence."""
        try:
            _, manifest = open_state(made)
        except UsageError:
            return f"no state was saved after step {recorded.step} here"
        apart = files_apart(recorded.files, {name: file.sha256 for name, file in manifest.files.items()})
        if not apart:
            return ""
        names = apart
        if recorded.path is not None:
            # What cannot be read differs all the same.
            with suppress(UsageError):
                found = self._differences(recorded.path, made)
                names = [*(one["name"] for one in found["tensors"]), *(one["path"] for one in found["values"])] or apart
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f"the state after step {recorded.step} differs: {', '.join(names[:MOST_NAMED])}{more}"


def _short(bits: str) -> str:
    return bits.removeprefix("sha256:")[:12]


def _made(trial: Trial, outcome: Outcome) -> Record | None:
    try:
        made = read_record(trial.folder.path / FILE)
    except UsageError:
        outcome.why = "the script failed before its first step" if outcome.block else "the script made no step"
        return None
    first = made.first
    if first > outcome.stretch.begins_after + 1:
        outcome.why = f"step {outcome.stretch.begins_after + 1} was not made here: the first one is step {first}"
        return None
    return made


def _samples_in(trial: Trial, step: int, lanes: Sequence[int]) -> dict[int, Sequence[Any]]:
    found: dict[int, Sequence[Any]] = {}
    for rank in range(trial.num_processes):
        for line in read_lines(trial.folder.samples(rank)):
            if line["step"] == step and line["lane"] in lanes:
                found[line["lane"]] = line["ids"]
    return dict(sorted(found.items()))


def _control(record: Record, stretch: Stretch) -> None:
    """An audit that could not find a flipped bit would prove nothing. Raises InternalError."""
    line = record.step(next((step for step in record.lines if step > stretch.begins_after), 0))
    if line is not None and not all(step_difference(line, {**one, STEP: line[STEP]}) for one in flipped(line)):
        raise InternalError("The comparison of this audit does not find a flipped bit.")


def look_at(checked: Checked, *, reads_states: bool) -> Audited:
    """What the record says against itself: its chain, and its states' files, whose every byte is read where that is wanted."""
    record = checked.record
    found = Audited(
        checked.title,
        0,
        0,
        says=starts_text(record.starts) if record.starts else "",
        replays=False,
    )
    found.damaged = dict(checked.damaged)
    if reads_states:
        found.damaged |= {step: text for step, one in checked.states.items() if (text := one.trouble())}
    if record.broken:
        found.forged = record.broken
    elif record.differs is not None:
        found.forged = f"step {record.differs['differs']} came again otherwise in the run itself"
    # Steps that the run passed over are passed over here too.
    course = checked.course()
    found.gaps = SkippedSteps.of(record.gaps).without(course.skipped).ranges
    skipped = [f"{first} to {last}" for first, last in course.skipped.ranges]
    texts = [f"the samples of steps {', '.join(skipped)} are passed over"] if skipped else []
    texts += [f"--fresh {','.join(course.fresh)}"] if course.fresh else []
    found.as_the_record_says = "; ".join(texts)
    return found


def within(found: Audited, segments: Sequence[Segment]) -> Audited:
    """Only the gaps that lie in these segments: somebody has named the steps that are to be checked."""
    first = min((one.after for one in segments), default=0)
    last = max((one.last for one in segments), default=0)
    gaps = [one for one in found.gaps if one[1] > first and one[0] <= last]
    return replace(found, gaps=gaps)


def from_its_beginning(found: Audited, first: int) -> Audited:
    """Without the gap before the record's `first` step: what comes before it is said, and not checked."""
    return replace(found, gaps=[one for one in found.gaps if one[1] >= first], begins_after=max(first - 1, 0))
