"""The loss of a pass, for the progress line; and the first one that is no finite number, with the lanes that it comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lockstep.handover.case import Case
from lockstep.notices import say
from lockstep.run.run_state import RunState

NAN_LOSS = "nan-loss"
"""The finding's name."""


def show_loss(run: RunState, step: int, loss: float | None, lanes: Sequence[int]) -> None:
    """Give the loss of a pass to the gauges; say so on rank 0 where it stops being finite.

    Args:
        run: where the gauges are.
        step: the step's number.
        loss: the weighted mean over all lanes; None where no lane has one.
        lanes: those whose own loss is not finite, if that is known.
    """
    if loss is None:
        return
    ledger = run.machinery.ledger
    was_finite = math.isfinite(ledger.loss) or not ledger.num_losses
    ledger.loss = loss
    ledger.num_losses += 1
    if not was_finite or math.isfinite(loss) or run.machinery.transport.rank != 0:
        return
    setup = run.setup
    last_stage = setup.mesh.stages - 1
    ranks = sorted({setup.mesh.rank(setup.placement.rank_of(lane), last_stage) for lane in lanes})
    said = f"the loss is {loss} in step {step}{_whence(lanes, ranks, setup.placement.num_lanes)}"
    say(f"{said}.")
    if setup.folder is not None:
        Case(NAN_LOSS, said, tuple(ranks)).add_to(setup.folder.findings)


def _whence(lanes: Sequence[int], ranks: Sequence[int], num_lanes: int) -> str:
    """`: it comes from lane 2, on rank 1; the other lanes are finite`."""
    if not lanes:
        return ""
    if len(lanes) == num_lanes:
        return ", in every lane"
    numbers = ", ".join(map(str, lanes))
    where = f"on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    others = "the other lane is" if num_lanes == len(lanes) + 1 else "the other lanes are"
    return f": it comes from lane{'s' if len(lanes) > 1 else ''} {numbers}, {where}; {others} finite"
