"""A rank that ended well while others still needed it."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="early-leaver",
    title="A rank has left too early, or another one calls an exchange more",
    seen=(
        "A rank ended with exit code 0, by `sys.exit(0)` or at the end of its script, and another one then waited "
        "for it in an exchange."
    ),
    example="""\
FAILED    rank 1 ended with exit code 0 (sys.exit at train.py:9), while rank 0 went on to its next exchange
  at /home/ada/train.py:10
    dist.all_reduce(torch.ones(2))
""",
    why=(
        "Ranks count their steps by themselves in a plain script: one had fewer batches, left a loop with "
        "`break`, or ended when a condition held that does not hold on the others. Or the one that waits calls an exchange "
        "more: a metric that is gathered on rank 0 alone, or once for each batch where ranks have more or fewer."
    ),
    what_to_do=(
        "Let all ranks decide together when to stop: `run.any(done)`, or an `all_reduce` of the flag.",
        "With `run.steps(loader)` every rank has the same steps, however many samples there are.",
        "Compute metrics that gather (`metric.compute()`, `all_gather`) on all ranks, equally often.",
        "In a plain script give every rank as many batches: `DistributedSampler`, `drop_last=True`.",
    ),
)
