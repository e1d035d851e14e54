"""`samebits verify --interrupt`: does a run that is stopped resume as if it had not been?

until the stop     a run that ends when its first automatic state is saved, as if it were killed
resumed            a run that resumes from this state, and sees the files of the first
undisturbed        a run without a stop, with which the second is compared from the stop on
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.trials.trials import Program, Trial, Trials
from samebits.protocol.run_folder import STATES, unsaved
from samebits.protocol.saving import NEVER, Saving
from samebits.verify.cause import NOT_REPEATABLE
from samebits.verify.comparison import Difference, comparable, first_difference, rows_of
from samebits.verify.continued import Continued
from samebits.verify.evidence import Evidence, ItemAtStep, Kind, read_evidence
from samebits.verify.explanation import both_texts
from samebits.verify.forgotten import cause, forgotten
from samebits.verify.result import Explained, Failed, Run
from samebits.verify.verify import RunError, failed_run, nothing_recorded, why_no_end

"""No state is saved by the run that resumes: it would cost time."""
NO_EVIDENCE = (Kind.OWN, Kind.VARIABLE, Kind.INITIAL, Kind.AGAIN)
"""Kinds that a run which resumes cannot or need not have in common with one that never stopped."""


@dataclass(frozen=True)
class Interruption:
    """What to prove."""

    program: Program
    after: int
    """The step after which the run is stopped, at the next place where a state is saved."""
    ranks: tuple[int, int]
    """Until the stop, and after it."""
    lanes: int | None
    """None: the script's."""
    steps: int
    """How many steps after the stop are compared."""


@dataclass(frozen=True)
class _RecordedRun:
    """A run, and what it recorded."""

    trial: Trial
    evidence: Evidence

    @property
    def run(self) -> Run:
        return Run(
            self.trial.num_ranks,
            self.evidence.num_steps,
            self.trial.seconds,
            self.evidence.end.reached,
            why_no_end(self.trial, self.evidence),
        )


def interrupt(wanted: Interruption, trials: Trials) -> Continued:
    """Make the three runs and compare the last two.

    Raises:
        UsageError: when the script has no such step, no place for a state after it, or no exact bits.
        EnvironmentFailure: when nothing can be run.
    """
    program = wanted.program
    found = Continued(program.title, wanted.after, wanted.ranks, program.device, wanted.steps)
    states = trials.base / STATES
    states.mkdir()
    try:
        stopped = _until_the_stop(wanted, trials, found, states)
        record = {"steps": found.stopped_after + wanted.steps, "to_the_end": True, "goes_on": found.stopped_after}
        label = f"resumed after step {found.stopped_after}"
        saving = Saving(str(states), NEVER)
        resumed = _recorded(trials.run(label, wanted.ranks[1], found.lanes, record, saving=saving))
        whole = _recorded(trials.run("undisturbed", wanted.ranks[0], found.lanes, record))
        _check_end(whole, resumed)
    except RunError as error:
        found.failed = error.failed
        return found
    found.runs = [whole.run, resumed.run]
    _compare(found, whole, resumed, stopped)
    return found


def _until_the_stop(wanted: Interruption, trials: Trials, found: Continued, states: Path) -> _RecordedRun:
    """Make the run that is stopped; note what was decided, and after which step it stopped."""
    saving = Saving(str(states), f"{wanted.after}steps")
    record = {"steps": wanted.after + wanted.steps, "stops": True}
    label = f"stop after step {wanted.after}"
    # Two runs see each other's files: the one that resumes finds what the stopped one wrote, as after a kill.
    trial = trials.run(label, wanted.ranks[0], wanted.lanes, record, saving=saving, num_runs=2)
    made = _recorded(trial)
    decided: Mapping[str, Any] = json.loads(trial.folder.decided.read_text())
    found.lanes, found.threads = int(decided["lanes"]), int(decided["threads"])
    if decided["not_exact"]:
        raise UsageError(f"There are no bits to compare: {decided['not_exact']}", "Leave out --interrupt.")
    if found.lanes < (most := max(wanted.ranks)):
        problem = f"Each rank needs a lane, but there are {found.lanes} for {most} ranks."
        raise UsageError(problem, f"Add --lanes {most}.")
    names = sorted(path.name for path in states.iterdir() if path.name.startswith("step-"))
    if not names:
        raise _no_state(wanted.after, made.evidence.num_steps)
    # States are saved where the script allows it, which may be some steps later than asked.
    found.stopped_after = int(names[-1].partition("-")[2])
    return made


def _no_state(after: int, num_steps: int) -> UsageError:
    if num_steps < after:
        steps = f"{num_steps} step{'s' * (num_steps != 1)}"
        return UsageError(
            f"The script makes {steps}, so it cannot be stopped after step {after}.", "Choose an earlier step."
        )
    return UsageError(
        f"No state could be saved after step {after}: it is in a loop that is not run.epochs, or after it the script makes "
        f"no further step and has no end of an epoch's body.",
        "Use run.epochs for the loop over epochs, with one run.steps in its body, or choose another step.",
    )


def _recorded(trial: Trial) -> _RecordedRun:
    """What a run recorded; raise when it failed, or recorded nothing."""
    evidence = read_evidence(trial.folder, trial.num_processes)
    if trial.outcome.exit_code and not evidence.end.over:
        raise RunError(failed_run(trial, 2 if trial.outcome.exit_code == 2 else 1))
    if not all(evidence.ranks):
        raise RunError(Failed(trial.label, nothing_recorded(trial), 2))
    return _RecordedRun(trial, evidence)


def _check_end(whole: _RecordedRun, resumed: _RecordedRun) -> None:
    """Raise when code after the last step fails only in the run that resumed."""
    end, block = resumed.evidence.end, resumed.trial.outcome.block
    if whole.evidence.end.reached and not end.reached and not end.why and block:
        text = f"The undisturbed run reached its end, but not this one:\n{block}"
        raise RunError(Failed(resumed.trial.label, text, 1))


def _compare(found: Continued, whole: _RecordedRun, resumed: _RecordedRun, stopped: _RecordedRun) -> None:
    after = found.stopped_after
    together = comparable([_from_the_stop(one.evidence, after) for one in (whole, resumed)])
    found.rows = rows_of(together)
    before, until, behind = (one.evidence.ranks[0] for one in (whole, stopped, resumed))
    found.forgotten = forgotten(before, until, behind, unsaved(whole.trial.folder, "sentences"))
    # A script that is not repeatable differs before the stop already. Then the stop is not to blame.
    earlier = first_difference([_until(one.evidence, after) for one in (whole, stopped)])
    difference = first_difference(together)
    if earlier is not None:
        found.difference = _explained(earlier, whole, stopped, NOT_REPEATABLE, repeatable=False)
    elif difference is not None:
        found.difference = _explained(difference, whole, resumed, cause(found.forgotten, difference.place))


def _explained(
    difference: Difference, left: _RecordedRun, right: _RecordedRun, why: str, *, repeatable: bool = True
) -> Explained:
    labels = [left.trial.label, right.trial.label]
    if difference.among_replicas:
        labels = [f"rank {side.rank} of {labels[side.run]}" for side in (difference.left, difference.right)]
    values = both_texts(difference.left_value, difference.right_value)
    return Explained(difference, labels[0], labels[1], None, values, why, repeatable)


def _from_the_stop(evidence: Evidence, after: int) -> Evidence:
    def counts(place: ItemAtStep) -> bool:
        return place.kind is Kind.RESUMED or (place.step > after and place.kind not in NO_EVIDENCE)

    return _only(evidence, counts)


def _until(evidence: Evidence, after: int) -> Evidence:
    def counts(place: ItemAtStep) -> bool:
        return place.step <= after and place.kind not in (Kind.RESUMED, Kind.OWN, Kind.VARIABLE)

    return _only(evidence, counts)


def _only(evidence: Evidence, counts: Callable[[ItemAtStep], bool]) -> Evidence:
    ranks = ({place: value for place, value in rank.items() if counts(place)} for rank in evidence.ranks)
    return replace(evidence, ranks=tuple(ranks))
