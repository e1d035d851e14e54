"""The order of a measurement: one run that is not counted, then rounds in which every configuration runs once, in turn.

This file only carries out; `plan` decides what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from samebits.bench.measures import Round, read_round
from samebits.bench.plan import Bench, Configuration, configurations
from samebits.bench.results import Measured, Results
from samebits.errors import UsageError
from samebits.launcher.trials.trials import Trial, Trials
from samebits.protocol.environment import MEASURE
from samebits.protocol.journal.failure import FailureKind

Watch = Callable[[str], None]


@dataclass
class Runners:
    """Where configurations run: processes with the usual threads, and with one for each core."""

    usual: Trials
    all_cores: Trials | None
    watch: Watch = field(default=lambda _line: None)
    """Called with one line about each round."""
    begin: Watch = field(default=lambda _text: None)
    """Called with what begins to run; the next line replaces it."""

    def of(self, configuration: Configuration) -> Trials:
        """The runs with this configuration's threads."""
        return self.all_cores if configuration.all_cores and self.all_cores is not None else self.usual


def measure(bench: Bench, runners: Runners) -> Results:
    """Run the script once to learn its lanes, then every configuration in every round.

    A signal ends the measurement; what was measured so far is in the results.

    Raises:
        UsageError: when the script makes too few steps.
        EnvironmentFailure: when nothing can be run.
    """
    results = Results(bench.program.title, bench.program.device, bench.cores, bench.amount)
    try:
        planned = _learn(bench, runners, results)
        if planned:
            measure_rounds(planned, bench, runners, results)
    except KeyboardInterrupt:
        results.interrupted_by = 130
    except SystemExit as ending:
        # A signal stopped the run that was under way.
        results.interrupted_by = int(ending.code or 130)
    return results


def _learn(bench: Bench, runners: Runners, results: Results) -> list[Configuration]:
    """Make the first run, which is not counted: it fills the caches and shows what the script decides itself."""
    runners.begin(f"first run, not counted: {bench.program.title}")
    trial = _run(runners.usual, Configuration("single", 1, bench.lanes, bench.program.threads), bench)
    runners.watch(f"first run, not counted: {trial.seconds:.1f} s")
    if trial.outcome.exit_code:
        results.stopped = trial.outcome.block or f"It ended with exit code {trial.outcome.exit_code}."
        results.stopped_code = 2 if trial.outcome.exit_code == 2 else 1
        return []
    if not trial.folder.decided.exists():
        raise UsageError(
            "The script ended without run.prepare(...), so there is nothing to measure.",
            "Give `bench` a script that calls samebits.init(), run.prepare and run.steps.",
        )
    first = read_round(trial.folder, 1)
    _check_steps(trial, first, bench)
    decided = json.loads(trial.folder.decided.read_text())
    results.lanes_named = bool(decided["lanes_named"])
    return configurations(bench, int(decided["lanes"]) if results.lanes_named else None, int(decided["threads"]))


def _check_steps(trial: Trial, first: Round | None, bench: Bench) -> None:
    amount = bench.amount
    measured = len(first.steps) if first is not None else 0
    if measured >= amount.steps:
        return
    made = json.loads(trial.folder.result.read_text())["steps"] if trial.folder.result.exists() else 0
    fewer = f", or use --steps {made - amount.warm_up}" if made > amount.warm_up else ""
    raise UsageError(
        f"The script runs {made} steps, but {amount.steps_needed} are needed: {amount.warm_up} to warm up and "
        f"{amount.steps} to measure.",
        f"Train for more epochs{fewer}.",
    )


def measure_rounds(planned: list[Configuration], bench: Bench, runners: Runners, results: Results) -> None:
    """Make all rounds; a configuration that fails is left out of later ones. Fills in `results` as runs end."""
    results.measured = [Measured(configuration) for configuration in planned]
    spent = 0.0
    for number in range(bench.amount.rounds):
        seconds = measure_round(number, bench, runners, results)
        spent += seconds
        left = spent / (number + 1) * (bench.amount.rounds - number - 1)
        still = f", about {left:.0f} s left" if left else ""
        counted = f"{len(planned)} configuration{'s' * (len(planned) > 1)}"
        runners.watch(f"round {number + 1} of {bench.amount.rounds}: {counted} in {seconds:.1f} s{still}")


def measure_round(number: int, bench: Bench, runners: Runners, results: Results) -> float:
    """Run every configuration in `results` that has not failed; the seconds it took. `number` counts from 0."""
    # [Note: why rounds rotate]
    # Machines drift: two cores give between 1.0 and 2.0 times one, minute by minute. So configurations are compared within a
    # round, and each round begins with another one, since some place in the round may always be the quiet one.
    at = number % len(results.measured)
    seconds = 0.0
    for one in results.measured[at:] + results.measured[:at]:
        if not one.failed:
            lanes = f"{one.configuration.lanes} lanes" if one.configuration.lanes else "its own lanes"
            runners.begin(f"round {number + 1} of {bench.amount.rounds}: {one.title}, {lanes}")
            seconds += _measure_once(one, bench, runners)
    return seconds


def _measure_once(one: Measured, bench: Bench, runners: Runners) -> float:
    trial = _run(runners.of(one.configuration), one.configuration, bench)
    if trial.outcome.exit_code:
        one.failed = reason(trial)
        return trial.seconds
    found = read_round(trial.folder, trial.num_processes)
    if found is None or len(found.steps) < bench.amount.steps:
        one.failed = f"It finished {len(found.steps) if found else 0} of {bench.amount.steps} measured steps."
    else:
        one.rounds.append(found)
    return trial.seconds


def _run(trials: Trials, configuration: Configuration, bench: Bench) -> Trial:
    wanted = {MEASURE: {"warm_up": bench.amount.warm_up, "steps": bench.amount.steps}}
    return trials.run(configuration.key, configuration.ranks, configuration.lanes, wanted, configuration.form)


def reason(trial: Trial) -> str:
    """Why a run failed, on one line."""
    failure = trial.outcome.failure
    if failure is not None and failure.kind is FailureKind.USAGE:
        return " ".join(failure.mistake).splitlines()[0]
    if failure is not None and failure.error:
        return f"rank {failure.rank}: {' '.join(failure.error.split())}"
    lines = [line.strip() for line in trial.outcome.block.splitlines() if line.strip()]
    return lines[0] if lines else f"It ended with exit code {trial.outcome.exit_code}."
