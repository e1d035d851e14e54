"""The loss of a pass, for the progress line; the first one that is no finite number, with the lanes that it comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from samebits.notices import say
from samebits.protocol.case import Case
from samebits.rank.checks.replicas import refuse_apart
from samebits.rank.position.run_state import RunState
from samebits.rank.strategy.pass_loss import PassLoss

NAN_LOSS = "nan-loss"
"""The finding's name."""
MOST_LATE = 100
"""A host that is this many passes ahead of its GPU waits for it."""


def take_loss(run: RunState, step: int, loss: PassLoss) -> None:
    """Take the loss of a pass of `step`, and show what is there: on a GPU, that of an earlier one."""
    under_way = run.loop_state.open_pass.losses
    under_way.append((step, loss))
    # To read the loss of a pass that a GPU still works on is to wait for it.
    while under_way and (under_way[0][1].is_there() or len(under_way) > MOST_LATE):
        _show(run, *under_way[0])
        under_way.popleft()


def settle_losses(run: RunState) -> None:
    """Wait for all losses, and show them."""
    under_way = run.loop_state.open_pass.losses
    if not under_way:
        return
    while under_way:
        # The loss stays in the queue while it is shown: what raises here is raised again when the run ends.
        _show(run, *under_way[0])
        under_way.popleft()
    run.components.step_timer.publish()


def _show(run: RunState, step: int, losses: PassLoss) -> None:
    """Give the loss of a pass to the gauges; say so on rank 0 where it stops being finite."""
    loss = losses.mean
    refuse_apart(run, losses.apart())
    if loss is None:
        return
    step_timer = run.components.step_timer
    was_finite = math.isfinite(step_timer.loss) or not step_timer.num_losses
    step_timer.loss = loss
    step_timer.num_losses += 1
    if not was_finite or math.isfinite(loss) or run.components.transport.rank != 0:
        return
    config, lanes = run.config, losses.unfinite
    last_stage = config.mesh.stages - 1
    ranks = sorted({config.mesh.rank(config.placement.rank_of(lane), last_stage) for lane in lanes})
    said = f"the loss is {loss} in step {step}{_whence(lanes, ranks, config.placement.num_lanes)}"
    say(f"{said}.")
    if config.folder is not None:
        Case(NAN_LOSS, said, tuple(ranks)).add_to(config.folder.findings)


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
