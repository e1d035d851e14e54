"""The order of a proof: the row `plain`, a run for each number of ranks, the comparison, the first difference.

This file only carries out; the other files decide what the evidence means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.trials.trials import Program, Trial, Trials
from samebits.machine.regular_file import read_regular
from samebits.protocol.layout.mesh import choose_mesh, launched, on_ranks
from samebits.verify.comparison import comparable, first_difference, rows_of
from samebits.verify.evidence import Evidence, read_evidence
from samebits.verify.explanation import Compared, Scene, expected, explain
from samebits.verify.lane_operators import find_operator
from samebits.verify.lane_order import LaneOrder, not_tried, try_another_order
from samebits.verify.plain import SCRIPT, Agreement, Lanes, Plain, compare_gradients, elements_for, read_lanes
from samebits.verify.result import CANNOT_TELL, Against, Failed, Result, Run
from samebits.verify.saved_bits import SavedBits, fact_differences, facts, name_of, to_save, write_saved

LAST_WORDS = 5
"""How many lines of a script that ended on its own are shown."""


class RunError(Exception):
    """Ends a proof, which shows `failed`."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.label)
        self.failed = failed


def failed_run(trial: Trial, code: int) -> Failed:
    """The failure of a run, which ends the proof with `code`."""
    text = trial.outcome.block or f"It ended with exit code {trial.outcome.exit_code}."
    if trial.outcome.failure is None:
        text += _last_words(trial)
    return Failed(trial.label, text, code)


def _last_words(trial: Trial) -> str:
    """What rank 0 printed last, for a script that ends on its own (argparse says why, and exits)."""
    try:
        lines = read_regular(trial.folder.log(0)).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "".join(f"\n  | {line}" for line in lines[-LAST_WORDS:])


def nothing_recorded(trial: Trial) -> str:
    """Why a run that ended well has recorded nothing."""
    if not trial.folder.decided.exists():
        return (
            "The script ended without run.prepare(...), so there is nothing to compare. `verify` needs a script that "
            "calls samebits.init(), run.prepare and run.steps."
        )
    return "The script ended before its first step was finished, so there is nothing to compare."


def why_no_end(trial: Trial, evidence: Evidence) -> str:
    """Why a run did not reach its end after the last step; empty when it did."""
    if evidence.end.reached:
        return ""
    if evidence.end.why:
        return evidence.end.why
    failure = trial.outcome.failure
    if failure is None:
        return f"it ended with exit code {trial.outcome.exit_code}"
    at = f" at {Path(failure.file).name}:{failure.line}" if failure.file else ""
    return f"{' '.join(f'{failure.error} {failure.fix}'.split())}{at}"


PLAIN = {"plain": True, "steps": 1}


@dataclass(frozen=True)
class Proof:
    """What to prove."""

    program: Program
    ranks: tuple[int, ...]
    lanes: int | None
    """None: the script's, or those of the file, or the largest number of ranks."""
    steps: int
    accepted: tuple[str, ...] = ()
    """What a person accepts, of `plain.ACCEPTABLE`."""
    save: Path | None = None
    """Where to write the bits, if all ranks have the same."""
    against: tuple[Path, SavedBits] | None = None
    """A file of bits, which the runs must have too."""
    where: bool = False
    """Whether the operator is wanted at which numbers of ranks part."""
    default_lanes: int = 0
    """Those of the run that follows where nobody names any; 0: those of `verify`."""

    def __post_init__(self) -> None:
        if self.lanes is not None:
            self.check_lanes(self.lanes, f"--lanes {self.lanes}")
        if self.against is not None:
            self._check_script(*self.against)

    def check_lanes(self, lanes: int, named_by: str) -> None:
        """Raise `UsageError` when some number of ranks needs more lanes."""
        if lanes < max(self.ranks):
            possible = ",".join(str(ranks) for ranks in self.ranks if ranks <= lanes) or str(lanes)
            raise UsageError(
                f"Each rank needs a lane, but {named_by} is less than {max(self.ranks)} ranks.",
                f"Verify with --lanes {max(self.ranks)}, or with --ranks {possible}.",
            )

    def _check_script(self, path: Path, saved: SavedBits) -> None:
        if saved.script != name_of(self.program) and SCRIPT not in self.accepted:
            raise UsageError(
                f"{path} has the bits of {saved.script}, not of {name_of(self.program)}.",
                f"Add --accept {SCRIPT} if both should do the same.",
            )

    def lanes_without_the_script(self, usual: int) -> int:
        """The lanes where neither the script nor a person names any; `usual` is what the script has then."""
        then = int(self.against[1].facts["lanes"]) if self.against is not None else 0
        return self.lanes or self.default_lanes or max(then or usual, *self.ranks)

    def usual_lanes(self) -> set[int]:
        """The lanes of `samebits run` on these numbers of ranks where nobody names any."""
        placed = (launched(on_ranks(self.program.form, count), count) for count in self.ranks)
        return {choose_mesh(form, ranks).default_lanes() for ranks, form in placed}

    @property
    def wanted(self) -> dict[str, Any]:
        """What the compared runs must record."""
        norms = self.save is not None or self.against is not None
        return {"steps": self.steps, "to_the_end": True, "norms": norms}


def verify(proof: Proof, trials: Trials) -> Result:
    """Make the runs and compare them; write the bits if that is wanted and all ranks have the same.

    Raises:
        UsageError: when the script has fewer lanes than the ranks that are asked for.
        EnvironmentFailure: when nothing can be run.
    """
    program = proof.program
    result = Result(program.title, proof.ranks, program.threads, program.device, proof.steps, accepted=proof.accepted)
    compared: list[Compared] = []
    try:
        result.plain = _plain_row(proof, trials, result)
        for ranks in proof.ranks:
            one, run = _compared_run(proof, trials, result, ranks)
            compared.append(one)
            result.runs.append(run)
        _check_ends(compared, result.runs)
    except RunError as error:
        # Compared with a file, a script that fails is one that `git bisect run` skips.
        result.failed = replace(error.failed, exit_code=CANNOT_TELL) if proof.against is not None else error.failed
        return result
    result.lane_order = _lane_order(proof, trials, result, compared)
    _compare(proof, trials, result, compared)
    if proof.save is not None:
        _save(proof, proof.save, result, compared[0])
    return result


def _lane_order(proof: Proof, trials: Trials, result: Result, compared: Sequence[Compared]) -> LaneOrder:
    if result.not_exact:
        return not_tried("")
    alone = next((one for one in compared if one.num_ranks == 1), compared[0])
    if alone.num_ranks != 1 and first_difference(comparable([one.evidence for one in compared])) is not None:
        return not_tried("the bits differ already")
    return try_another_order(trials, result.lanes, proof.wanted, alone.evidence)


def _save(proof: Proof, path: Path, result: Result, first: Compared) -> None:
    if result.same_on_all_ranks:
        write_saved(path, to_save(proof.program, _decided(first), first.evidence, proof.steps).encode())
        result.saved_to = str(path)
    else:
        result.not_saved_to = str(path)


def _compare(proof: Proof, trials: Trials, result: Result, made: Sequence[Compared]) -> None:
    compared = list(made)
    if proof.against is not None:
        compared = _with_saved(proof, result, made)
    together = comparable([one.evidence for one in compared])
    compared = [replace(one, evidence=evidence) for one, evidence in zip(compared, together, strict=True)]
    result.rows = rows_of(together)
    result.first_nan = together[0].first_nan
    difference = first_difference(together)
    if difference is None:
        return
    if result.not_exact:
        result.difference = expected(difference, compared, result.not_exact)
    else:
        facts = result.against.facts if result.against else ()
        assert result.lane_order is not None
        scene = Scene(trials, result.lanes, proof.wanted, facts, lane_order=result.lane_order)
        result.difference = explain(difference, compared, scene)
        if proof.where:
            result.operator = find_operator(difference, compared, trials, result.lanes)
    if result.against is not None:
        same = all(cell.differs_at is None for row in result.rows for cell in row.cells[-1:])
        result.against = replace(result.against, same=same)


def _with_saved(proof: Proof, result: Result, made: Sequence[Compared]) -> list[Compared]:
    """The runs followed by the file; only the steps that both have, if their numbers differ."""
    assert proof.against is not None
    path, saved = proof.against
    here = facts(_decided(made[0]))
    steps = min(saved.steps, proof.steps)
    result.against = Against(str(path), tuple(fact_differences(saved, proof.program.args, here)), steps)
    compared = [*made, Compared(path.name, None, saved.evidence, None)]
    if saved.steps == proof.steps:
        return compared
    return [replace(one, evidence=one.evidence.until(steps)) for one in compared]


def _compared_run(proof: Proof, trials: Trials, result: Result, ranks: int) -> tuple[Compared, Run]:
    trial = trials.run(_ranks(ranks), ranks, result.lanes, proof.wanted)
    evidence = read_evidence(trial.folder, trial.num_processes)
    # A failure after the last wanted step leaves the steps comparable; `_check_ends` looks at it.
    if trial.outcome.exit_code and not evidence.end.over:
        raise RunError(failed_run(trial, 1))
    if not all(evidence.ranks):
        raise RunError(Failed(trial.label, nothing_recorded(trial), 2))
    run = Run(ranks, evidence.num_steps, trial.seconds, evidence.end.reached, why_no_end(trial, evidence))
    return Compared(trial.label, ranks, evidence, trial), run


def _check_ends(compared: Sequence[Compared], runs: Sequence[Run]) -> None:
    """Raise if code after the last step fails on some numbers of ranks and not on others."""
    came = [run for run in runs if run.reached_end]
    for one, run in zip(compared, runs, strict=True):
        trial = one.trial
        if came and not run.reached_end and not one.evidence.end.why and trial is not None and trial.outcome.block:
            text = f"After step {run.steps} it reached the end with {_ranks(came[0].ranks)}, but not here:"
            raise RunError(Failed(one.label, f"{text}\n{trial.outcome.block}", 1))


def _decided(one: Compared) -> dict[str, Any]:
    assert one.trial is not None
    decided: dict[str, Any] = json.loads(one.trial.folder.decided.read_text())
    return decided


def _run(trials: Trials, label: str, lanes: int | None, evidence: Mapping[str, Any]) -> Trial:
    """Make a run on one rank that must end well."""
    trial = trials.run(label, 1, lanes, evidence)
    if trial.outcome.exit_code:
        raise RunError(failed_run(trial, trial.outcome.exit_code if trial.outcome.exit_code == 2 else 1))
    return trial


def _plain_row(proof: Proof, trials: Trials, result: Result) -> Plain:
    """Run the first step with all lanes and with one; also decides the number of lanes."""
    first = _run(trials, _lanes(proof.lanes) if proof.lanes else "plain", proof.lanes, PLAIN)
    if not first.folder.decided.exists():
        raise RunError(Failed(first.label, nothing_recorded(first), 2))
    decided = json.loads(first.folder.decided.read_text())
    own, result.threads = int(decided["lanes"]), int(decided["threads"])
    result.lanes_named, result.usual_lanes = bool(decided["lanes_named"] or proof.default_lanes), proof.usual_lanes()
    result.not_exact = decided["not_exact"]
    result.numerics = str(decided["arithmetic"]["numerics"])
    result.allow = tuple(decided["arithmetic"]["allow"])
    if result.not_exact and (proof.save is not None or proof.against is not None):
        problem = f"There are no bits to save or to compare with a file: {result.not_exact}"
        raise UsageError(problem, "Leave out --save and --against.")
    if own > 1 and result.lanes_named:
        proof.check_lanes(own, f"lanes={own} in the script")
    result.lanes = own if own > 1 and result.lanes_named else proof.lanes_without_the_script(own)
    if result.lanes == 1:
        return Plain(Agreement.ONE_LANE, 1)
    # The run that showed the script's lanes may be one of the two.
    many, one = (first if own == lanes else _run(trials, _lanes(lanes), lanes, PLAIN) for lanes in (result.lanes, 1))
    return _judge(result, many, one)


def _judge(result: Result, lanes_trial: Trial, whole_trial: Trial) -> Plain:
    budget = elements_for(result.lanes)
    read: list[Lanes] = []
    for trial in (lanes_trial, whole_trial):
        lanes = read_lanes(trial.folder, budget)
        if lanes is None or not lanes.gradients:
            raise RunError(Failed(trial.label, nothing_recorded(trial), 2))
        read.append(lanes)
    return compare_gradients(*read)


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count != 1 else ''}"


def _lanes(count: int) -> str:
    return f"plain, {count} lane{'s' if count != 1 else ''}"
