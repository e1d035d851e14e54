"""The order of a proof: the row `plain`, a run for each number of ranks, the comparison, the first difference.

Carries out; what the evidence means is decided in the other files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.errors import UsageError
from lockstep.prove.comparison import cell, first_difference
from lockstep.prove.evidence import Evidence, Kind, read_evidence
from lockstep.prove.explanation import expected, explain
from lockstep.prove.findings import Failed, Findings, Row, Run
from lockstep.prove.plain import Finding, Lanes, Plain, elements_for, judge, read_lanes
from lockstep.prove.trials import Program, Trial, Trials

PLAIN = {"plain": True, "steps": 1}


@dataclass(frozen=True)
class Proof:
    """What is to be proved."""

    program: Program
    ranks: tuple[int, ...]
    lanes: int | None
    """None: the script's, or the largest number of ranks."""
    steps: int
    accepted: tuple[str, ...] = ()
    """Findings that a person accepts, of `findings.ACCEPTABLE`."""

    def __post_init__(self) -> None:
        if self.lanes is not None:
            self.check_lanes(self.lanes, f"--lanes {self.lanes}")

    def check_lanes(self, lanes: int, said_by: str) -> None:
        """Raise `UsageError` when some number of ranks needs more lanes."""
        if lanes < max(self.ranks):
            possible = ",".join(str(ranks) for ranks in self.ranks if ranks <= lanes) or str(lanes)
            raise UsageError(
                f"Each rank needs a lane, but {said_by} is less than {max(self.ranks)} ranks. "
                f"Verify with --lanes {max(self.ranks)}, or with --ranks {possible}."
            )


class _RunError(Exception):
    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.label)
        self.failed = failed


def verify(proof: Proof, trials: Trials) -> Findings:
    """Make the runs and compare them.

    Raises:
        UsageError: when the script has fewer lanes than ranks are asked for.
        WorldError: when nothing can be run.
    """
    program = proof.program
    findings = Findings(
        program.title, proof.ranks, program.threads, program.device, proof.steps, accepted=proof.accepted
    )
    try:
        findings.plain = _plain_row(proof, trials, findings)
        made, evidence = [], []
        for ranks in proof.ranks:
            trial = _run(trials, _ranks(ranks), ranks, findings.lanes, {"steps": proof.steps})
            made.append(trial)
            evidence.append(_evidence(trial))
            findings.runs.append(Run(ranks, evidence[-1].num_steps, trial.seconds))
    except _RunError as error:
        findings.failed = error.failed
        return findings
    findings.rows = _rows(evidence)
    difference = first_difference(evidence)
    if difference is not None and findings.not_exact:
        findings.difference = expected(difference, made, findings.not_exact)
    elif difference is not None:
        findings.difference = explain(difference, made, evidence, trials, findings.lanes)
    return findings


def _run(trials: Trials, label: str, ranks: int, lanes: int | None, evidence: Mapping[str, Any]) -> Trial:
    trial = trials.run(label, ranks, lanes, evidence)
    outcome = trial.outcome
    if outcome.exit_code:
        first = not evidence.get("steps") or bool(evidence.get("plain"))
        code = 2 if first and outcome.exit_code == 2 else 1
        raise _RunError(Failed(label, outcome.block or f"It ended with exit code {outcome.exit_code}.", code))
    return trial


def _evidence(trial: Trial) -> Evidence:
    evidence = read_evidence(trial.folder, trial.num_processes)
    if not all(evidence.ranks):
        raise _RunError(Failed(trial.label, _nothing_recorded(trial), 2))
    return evidence


def _nothing_recorded(trial: Trial) -> str:
    if not trial.folder.decided.exists():
        return (
            "The script ended without run.prepare(...), so there is nothing to compare. `verify` needs a script that "
            "calls lockstep.init(), run.prepare and run.steps."
        )
    return "The script ended before its first step was finished, so there is nothing to compare."


def _plain_row(proof: Proof, trials: Trials, findings: Findings) -> Plain:
    """The first step with all lanes and with one; also decides the number of lanes."""
    first = _run(trials, _lanes(proof.lanes) if proof.lanes else "plain", 1, proof.lanes, PLAIN)
    if not first.folder.decided.exists():
        raise _RunError(Failed(first.label, _nothing_recorded(first), 2))
    decided = json.loads(first.folder.decided.read_text())
    own, findings.threads = int(decided["lanes"]), int(decided["threads"])
    findings.lanes_named = bool(decided["lanes_named"])
    findings.not_exact = decided["not_exact"]
    findings.numerics = str(decided["arithmetic"]["numerics"])
    if own > 1:
        proof.check_lanes(own, f"lanes={own} in the script")
        findings.lanes = own
        return _judge(findings, first, _run(trials, _lanes(1), 1, 1, PLAIN))
    findings.lanes = proof.lanes or max(proof.ranks)
    if findings.lanes == 1:
        return Plain(Finding.ONE_LANE, 1)
    return _judge(findings, _run(trials, _lanes(findings.lanes), 1, findings.lanes, PLAIN), first)


def _judge(findings: Findings, lanes_trial: Trial, whole_trial: Trial) -> Plain:
    budget = elements_for(findings.lanes)
    read: list[Lanes] = []
    for trial in (lanes_trial, whole_trial):
        lanes = read_lanes(trial.folder, budget)
        if lanes is None or not lanes.gradients:
            raise _RunError(Failed(trial.label, _nothing_recorded(trial), 2))
        read.append(lanes)
    return judge(*read)


def _rows(evidence: Sequence[Evidence]) -> list[Row]:
    rows = []
    for kind in Kind:
        cells = tuple(cell(kind, run, evidence[0]) for run in evidence)
        if any(one.num_items for one in cells):
            rows.append(Row(kind, max(one.num_items for one in cells), cells))
    return rows


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count != 1 else ''}"


def _lanes(count: int) -> str:
    return f"plain, {count} lane{'s' if count != 1 else ''}"
