"""Where a rank is and where its time goes: keeps the journal, and adds up the time of each phase."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from samebits.protocol.journal.gauges import Gauges
from samebits.protocol.journal.ring import ENDING, JournalWriter, Phase
from samebits.rank.caller import caller
from samebits.rank.position.trace import Trace


class StepTimer:
    """The rank's own account; without a journal nobody watches."""

    def __init__(self, journal: Path | None) -> None:
        self._journal = JournalWriter(journal) if journal is not None else None
        self._phase, self._operation = Phase.SCRIPT, ""
        self._since = time.perf_counter_ns()
        self.spent_ns: dict[Phase, int] = dict.fromkeys(Phase, 0)
        self.intervals: list[tuple[Phase, str, int, int]] | None = None
        """Every (phase, operation, begin, end) since somebody put a list here; `samebits bench` does."""
        self.trace: Trace | None = None
        self._before_steps_ns: int | None = None
        """What the script took before its first step had ended: imports, the data set, the model."""
        self._steps_end_ns, self._evaluated_ns = 0, 0
        """When the last step ended, and how long was evaluated until then."""
        self.step = 0
        self.epoch = 0
        self.num_epochs = 0
        self.step_in_epoch = 0
        self.steps_per_epoch = 0
        self.samples = 0
        self.num_losses = 0
        self.loss = float("nan")
        self.enter(Phase.SCRIPT, "init")

    def enter(self, phase: Phase, operation: str = "") -> Phase:
        """Count the time from here on for `phase`; return the phase before."""
        now = time.perf_counter_ns()
        before, self._phase = self._phase, phase
        self.spent_ns[before] += now - self._since
        if self.intervals is not None:
            self.intervals.append((before, self._operation, self._since, now))
        self._since, self._operation = now, operation
        if self._journal is not None:
            # The script is over: whoever calls then is no line of it.
            file, line = caller() if operation != ENDING else ("", 0)
            self._journal.write(phase, operation, self.step, self.epoch, file, line)
        return before

    def move(self, source: Phase, target: Phase, seconds: float) -> None:
        """Count `seconds` for `target` instead of `source`: waiting inside lanes, known only afterwards."""
        self.spent_ns[source] -= int(seconds * 1e9)
        self.spent_ns[target] += int(seconds * 1e9)

    def take_trace(self, trace: Trace) -> None:
        """Record every interval until the steps of `trace` are over, and have it written then."""
        self.trace, self.intervals = trace, trace.intervals

    def end_trace(self) -> None:
        """Write the trace, where one is taken."""
        if self.trace is not None:
            self.trace.write()
            self.trace = self.intervals = None

    def publish(self) -> None:
        """Show the gauges to the launcher; once a step."""
        if self.trace is not None and self.trace.end_step(self.step, self.epoch, self.samples):
            self.end_trace()
        self._steps_end_ns, self._evaluated_ns = time.monotonic_ns(), self.spent_ns[Phase.EVALUATE]
        if self._before_steps_ns is None:
            self._before_steps_ns = self.spent_ns[Phase.SCRIPT]
        if self._journal is not None:
            self._journal.gauges(
                Gauges(
                    epoch=self.epoch,
                    num_epochs=self.num_epochs,
                    step=self.step,
                    step_in_epoch=self.step_in_epoch,
                    steps_per_epoch=self.steps_per_epoch,
                    samples=self.samples,
                    data_ns=self.spent_ns[Phase.DATA],
                    compute_ns=self.spent_ns[Phase.COMPUTE],
                    exchange_ns=self.spent_ns[Phase.EXCHANGE],
                    update_ns=self.spent_ns[Phase.UPDATE],
                    script_ns=self.spent_ns[Phase.SCRIPT] - self._before_steps_ns,
                    num_losses=self.num_losses,
                    loss=self.loss,
                )
            )

    def ending(self) -> dict[str, float]:
        """For the result: how long was evaluated, and since when what follows the steps and evaluations lasts; 0 without steps."""
        evaluated_ns = self.spent_ns[Phase.EVALUATE]
        since_ns = self._steps_end_ns + evaluated_ns - self._evaluated_ns if self._steps_end_ns else 0
        return {"evaluation_s": round(evaluated_ns / 1e9, 3), "over_since_ns": since_ns}

    def lost(self, sentence: str) -> None:
        """Report to the launcher that something could not be written."""
        if self._journal is not None:
            self._journal.lost(sentence)

    def note(self, values: dict[str, Any]) -> None:
        """Show small values to the launcher."""
        if self._journal is not None:
            self._journal.note(values)
