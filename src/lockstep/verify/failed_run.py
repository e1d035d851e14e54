"""A run that did not end well, so that there is nothing to compare: in words."""

from __future__ import annotations

from pathlib import Path

from lockstep.launcher.trials.trials import Trial
from lockstep.machine.regular_file import read_regular
from lockstep.verify.evidence import Evidence
from lockstep.verify.result import Failed

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
            "calls lockstep.init(), run.prepare and run.steps."
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
