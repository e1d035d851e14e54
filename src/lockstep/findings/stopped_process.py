"""A rank that a signal has stopped."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="stopped-process",
    title="A rank was stopped by a signal",
    seen="The kernel says that its process is stopped (state T); others wait for it.",
    example="""\
stalled   5 s: rank 1 has not reached the exchange of gradients of step 3 (train.py:32); rank 0 waits for it;
          rank 1 is stopped by a signal (SIGCONT lets it go on), it was at train.py:42 (end of step 2, for 5 s)
help      Let it go on with kill -CONT 4121 (lockstep watch shows the process number).
""",
    why=(
        "Somebody sent SIGSTOP, pressed Ctrl-Z where the terminal was the rank's, or attached a debugger. A batch "
        "system suspends jobs like this."
    ),
    what_to_do=(
        "Let it go on with `kill -CONT PID` (`lockstep watch` shows the process number).",
        "Start with `--on-stall replace` to end it: all ranks start again from their step, with the same bits.",
    ),
)
