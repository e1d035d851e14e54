"""Whether SyncBatchNorm can work: it exchanges in every forward, so all ranks must make the same number of them.

A pure decision; ordinary BatchNorm needs none (each lane normalises its own samples, see docs/guarantees.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.errors import UsageError
from lockstep.protocol.layout.mesh import Mesh


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
