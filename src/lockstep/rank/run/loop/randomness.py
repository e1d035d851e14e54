"""Warnings about random numbers that one rank draws alone, and about seeds inside lanes; once each."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.notices import say
from lockstep.rank.run.run_state import RunState


def say_apart(run: RunState, apart: Sequence[int], step: int) -> None:
    """Say that ranks drew other numbers than rank 0 outside lanes, before those of `step`; any rank may call it."""
    if run.machinery.transport.rank == 0 and not run.progress.said_apart:
        ranks = f"rank {apart[0]}" if len(apart) == 1 else f"ranks {', '.join(map(str, apart))}"
        say(
            f"{ranks} drew different random numbers than rank 0 outside lanes before step {step} (under "
            f"`if run.is_main:`, or in a loop of a different length), so later draws there differ too. Draw the same "
            f"numbers on every rank, or use your own generator: torch.Generator().manual_seed(run.seed(...))."
        )
    run.progress.said_apart = True


def say_seeded_lane(run: RunState, line: str) -> None:
    """Say that a lane seeded torch itself; `line` is that of the loop over the lanes."""
    if not run.progress.said_seeded_lane and run.machinery.transport.rank == 0:
        say(
            f"{line}: torch.manual_seed was called inside a lane and replaced the lane's own stream. A seed made from "
            f"a call count or the rank depends on the number of ranks: use run.seed(..., step.number, lane)."
        )
    run.progress.said_seeded_lane = True
