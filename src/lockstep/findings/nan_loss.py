"""A loss that is not a number."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="nan-loss",
    title="The loss is not a finite number",
    seen=(
        "The lanes' losses meet in each step's exchange; the first one that is NaN or infinite is named with its "
        "step, lane and rank."
    ),
    example="""\
lockstep: the loss is nan in step 2: it comes from lane 2, on rank 1; the other lanes are finite.
""",
    why=(
        "A learning rate that is too high, a logarithm or a root of 0, a division by an empty count, a sample "
        "that is broken, or an overflow in half precision."
    ),
    what_to_do=(
        "Look at the samples of that lane in that step: the same command computes the same step again.",
        "Compute in `with torch.autograd.set_detect_anomaly(True):` to get the operation.",
        "Lower the learning rate, or clip: `run.clip_grad_norm_(model.parameters(), 1.0)`.",
    ),
)
