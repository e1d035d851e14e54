"""How findings call ranks and phases."""

from __future__ import annotations

from collections.abc import Iterable

from samebits.protocol.journal.ring import IN_STEP, Phase

PHASES = {
    Phase.START: "starting up",
    Phase.SCRIPT: "in the script",
    Phase.DATA: "waiting for samples",
    Phase.COMPUTE: "forward and backward",
    Phase.EXCHANGE: "exchange",
    Phase.UPDATE: "optimizer",
    Phase.EVALUATE: "evaluation",
    Phase.PAUSED: "breakpoint()",
}
"""What a rank does, for people."""


def step_text(step: int, *, is_in_step: bool) -> str:
    """`in step 20 (19 done)`, `after step 20`; `before the first step`. The number is `step.number` of the script."""
    if not step:
        return "before the first step"
    return f"in step {step} ({step - 1} done)" if is_in_step else f"after step {step}"


def phase_text(phase: Phase, step: int, operation: str = "") -> str:
    """`forward and backward of step 3`, `in the script since step 3`, `start of step 4`.

    Args:
        phase: what a rank does.
        step: the step under way, or the last one; 0 before the first.
        operation: what it does, more exactly.
    """
    if not step or phase in {Phase.START, Phase.PAUSED}:
        return PHASES[phase]
    if phase is Phase.UPDATE or operation == IN_STEP:
        return f"{'end' if phase is Phase.UPDATE else 'start'} of step {step}"
    joint = "since" if phase is Phase.SCRIPT else "after" if phase is Phase.EVALUATE else "of"
    return f"{PHASES[phase]} {joint} step {step}"


def awaited_text(what: str, phase: Phase | None, operation: str, step: int) -> str:
    """What a rank waits in: in the words of its step, where it is in one.

    Args:
        what: as its note says, perhaps with the line of the script at the end: `barrier (train.py:31)`.
        phase: what it does; None when it keeps no journal.
        operation: what it does, more exactly.
        step: the step under way.
    """
    if phase is not Phase.EXCHANGE:
        return what
    place = what[what.rfind(" (") :] if what.endswith(")") else ""
    return f"the exchange of {operation} of step {step}{place}"


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2, 5, 7`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][-1] == rank - 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    numbers = [f"{span[0]}-{span[-1]}" if span[-1] > span[0] + 1 else ", ".join(map(str, span)) for span in spans]
    is_one = sum(map(len, spans)) == 1
    return f"{'rank' if is_one else 'ranks'} {', '.join(numbers)}"
