"""How the ranks of a `lockstep.spawn` ended, and what the caller learns. `supervisor` is what ends them."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from lockstep.errors import RankFailed, RankMisused
from lockstep.launcher.request import Outcome
from lockstep.protocol.journal.failure import FailureKind


@dataclass(frozen=True)
class Ending:
    """How the ranks of a spawn ended."""

    outcome: Outcome | None
    error: BaseException | None

    @property
    def interrupted(self) -> bool:
        """Whether a person ended the ranks, and so knows."""
        return self.outcome is not None and bool(self.outcome.interrupted_by)

    def tell(self) -> None:
        """Raise what the caller should see, if anything."""
        if self.error is not None:
            raise self.error
        outcome = self.outcome
        if outcome is None or outcome.exit_code == 0:
            return
        if outcome.interrupted_by == signal.SIGINT:
            raise KeyboardInterrupt
        if outcome.interrupted_by:
            signal.raise_signal(outcome.interrupted_by)  # as intended: for this process
            return
        raise _failure(outcome)


def _failure(outcome: Outcome) -> RankFailed:
    failure = outcome.failure
    text = outcome.block.removeprefix("FAILED").strip()
    rank = outcome.rank if outcome.rank is not None else -1
    if failure is not None and failure.kind is FailureKind.USAGE:
        problem, fix = failure.mistake
        return RankMisused(f"rank {rank}: {problem}", fix, rank, failure.traceback, outcome.exit_code)
    return RankFailed(text, rank, failure.traceback if failure is not None else "", outcome.exit_code)
