"""What to do about a loader worker that has died: replace it, leave it to the launcher, or stop. Pure decisions.

a worker died at a sample              -> replaced alone, inside its rank
the next one dies at the same sample   -> stop: it would do so again
too many in one epoch, or the data set is not what it was -> the rank fails as it does with torch alone, and the
launcher replaces it or starts all again
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.errors import WorldError
from lockstep.feed.under_way import Doing
from lockstep.machine.ending_signals import signal_name

MOST = 10
"""How often the workers of a loader are replaced in one epoch, or in one evaluation."""


@dataclass(frozen=True)
class Death:
    """The end of a worker that nobody asked for."""

    pid: int
    exit_code: int
    """-n for signal n."""
    doing: Doing

    @property
    def what(self) -> str:
        """`was killed by signal 9 (SIGKILL)`."""
        code = self.exit_code
        return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"

    @property
    def sentence(self) -> str:
        """`loader worker (pid 71) was killed by signal 9 (SIGKILL) while fetching sample 7 of the data set (...)`."""
        return f"loader worker (pid {self.pid}) {self.what} {self.doing.words}"

    def is_like(self, other: Death, fetched: int, fetched_then: int) -> bool:
        """Whether both died of the same, as far as can be told.

        Args:
            other: an earlier one.
            fetched: how many batches had come by now.
            fetched_then: and when the other one died.
        """
        return self.doing == other.doing and (self.doing.kind != 0 or fetched == fetched_then)

    def as_torch_says(self) -> RuntimeError:
        """What torch raises. The launcher knows it: the rank is replaced, or all ranks start again."""
        if self.exit_code < 0:
            how = f"is killed by signal: {signal.strsignal(-self.exit_code)}."
        else:
            how = f"ended with exit code {self.exit_code}."
        error = RuntimeError(f"DataLoader worker (pid {self.pid}) {how}")
        error.add_note(self.doing.note)
        return error


@dataclass
class Deaths:
    """The deaths in one epoch or evaluation."""

    before: list[tuple[Death, int]] = field(default_factory=list)
    replaced: int = 0

    def verdict(self, deaths: Sequence[Death], fetched: int, why: str, *, has_changed: bool) -> Exception | None:
        """What to raise; None if the workers are to be replaced.

        Args:
            deaths: those that were found together, at least one.
            fetched: how many batches had come by then.
            why: why a SIGKILL came, as far as can be told.
            has_changed: whether the data set is not what the workers began with.
        """
        known = [one for one in deaths if any(one.is_like(other, fetched, then) for other, then in self.before)]
        self.before += [(death, fetched) for death in deaths]
        if known:
            return _stop(known[0], why)
        if has_changed or self.replaced >= MOST:
            return deaths[0].as_torch_says()
        self.replaced += 1
        return None


def _stop(death: Death, why: str) -> WorldError:
    error = WorldError(
        f"A {death.sentence}, and so did the one before it. A third would too, so the run stops."
        + (f" The kill: {why}." if why else "")
    )
    error.add_note(death.doing.note)
    return error


def replaced_sentence(deaths: Sequence[Death], seconds: float, why: str) -> str:
    """For the screen."""
    told = ", ".join(death.sentence for death in deaths)
    return f"{told}; replaced in {seconds:.1f} s, nothing recomputed" + (f". The kill: {why}" if why else "")
