"""Calls of a script that cannot be the same on any number of ranks: random numbers that one rank draws alone, and SyncBatchNorm."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.errors import UsageError
from lockstep.notices import say
from lockstep.protocol.layout.mesh import Mesh
from lockstep.rank.run.run_state import RunState


def say_apart(run: RunState, apart: Sequence[int], step: int) -> None:
    """Say that ranks drew other numbers than rank 0 outside lanes, before those of `step`; any rank may call it."""
    if run.components.transport.rank == 0 and not run.loop_state.said.apart:
        ranks = f"rank {apart[0]}" if len(apart) == 1 else f"ranks {', '.join(map(str, apart))}"
        say(
            f"{ranks} drew different random numbers than rank 0 outside lanes before step {step} (under "
            f"`if run.is_main:`, or in a loop of a different length), so later draws there differ too. Draw the same "
            f"numbers on every rank, or use your own generator: torch.Generator().manual_seed(run.seed(...))."
        )
    run.loop_state.said.apart = True


def say_seeded_lane(run: RunState, line: str) -> None:
    """Say that a lane seeded torch itself; `line` is that of the loop over the lanes."""
    if not run.loop_state.said.seeded_lane and run.components.transport.rank == 0:
        say(
            f"{line}: torch.manual_seed was called inside a lane and replaced the lane's own stream. A seed made from "
            f"a call count or the rank depends on the number of ranks: use run.seed(..., step.number, lane)."
        )
    run.loop_state.said.seeded_lane = True


def objection_to_lanes(mesh: Mesh, num_lanes: int, device_type: str, *, shares: bool = False) -> UsageError | None:
    """Why a model with SyncBatchNorm cannot be carried this way (`shares`: on GPUs of several ranks each); None when it can."""
    if num_lanes != mesh.num_ranks or mesh.stages > 1:
        stages = f" of {mesh.stages} stages each" if mesh.stages > 1 else ""
        return UsageError(
            "SyncBatchNorm communicates inside lanes, which works only with one lane per rank, but there are "
            f"{num_lanes} lanes on {mesh.num_ranks} ranks{stages}.",
            "Use BatchNorm, or as many lanes as ranks under ddp.",
        )
    if mesh.num_ranks > 1 and device_type == "cpu":
        problem = "torch's SyncBatchNorm needs GPUs, but the ranks are on the CPU."
        return UsageError(problem, "Use BatchNorm, or --device cuda.")
    if shares:
        problem = "torch's SyncBatchNorm needs a GPU for each rank, but ranks share one here."
        return UsageError(problem, "Use BatchNorm, or as many ranks as GPUs.")
    return None


def objection_to_steps(steps: Sequence[Sequence[int]]) -> UsageError | None:
    """Why an epoch cannot be trained with SyncBatchNorm; None when it can.

    Args:
        steps: the samples of each lane, for each step.
    """
    for number, sizes in enumerate(steps, 1):
        if 0 in sizes:
            return UsageError(
                f"SyncBatchNorm communicates in every lane, but step {number} has {sum(sizes)} samples, so "
                f"{sizes.count(0)} of {len(sizes)} lanes are empty and the others would wait forever.",
                "Use drop_last=True.",
            )
    return None
