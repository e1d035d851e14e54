"""Replicas of a plain script that no longer hold the same parameters."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="replicas-apart",
    title="Replicas of a DistributedDataParallel model have come apart",
    seen=(
        "In a script without `lockstep.init`, the ranks of a node compare sums over the bits of the parameters that "
        "DistributedDataParallel holds: every 500 forwards in training where that costs less than 1 % of the time, and "
        "when the model is no longer used. `--check-every off` leaves it out."
    ),
    example="""\
lockstep: replicas of a DistributedDataParallel model have come apart: at its end, 'head.bias' is not the same on rank 1 as on rank 0.
""",
    why=(
        "DDP compares nothing after it was built. A parameter that was frozen then is never reduced; one that a rank did "
        "not use keeps that rank's gradient; a penalty outside `forward` reaches parameters that DDP takes for ready; or "
        "code behind `if rank == 0` wrote to the model."
    ),
    what_to_do=(
        "Build DistributedDataParallel again after freezing or unfreezing, and compute every loss inside its forward.",
        "Use `find_unused_parameters=True` where ranks use different parts of the model.",
        "If only rank 0 loaded other weights after the training, nothing is wrong.",
    ),
)
