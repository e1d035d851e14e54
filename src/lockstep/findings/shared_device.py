"""Several ranks that compute on one GPU."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="shared-device",
    title="Several ranks compute on the same GPU",
    seen="A model was wrapped on `cuda:0` in a rank whose own GPU is another one, which is free.",
    example="""\
lockstep: rank 1: the model is on cuda:0, which local rank 0 uses too, while cuda:1 is free. Use .cuda() without
an index, or .to(f"cuda:{os.environ['LOCAL_RANK']}").
""",
    why=(
        'The script says `cuda:0`, or `torch.device("cuda", 0)`, or `.to(0)`. `.cuda()` without a number is '
        "right: lockstep sets the current device."
    ),
    what_to_do=(
        "Use `.cuda()` without a number, or `cuda:{os.environ['LOCAL_RANK']}`, or `run.device`.",
        'Load files with `map_location="cpu"`: a saved `cuda:0` comes back on `cuda:0`.',
    ),
)
