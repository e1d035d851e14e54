"""A rank that the kernel killed because memory was short."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="killed-for-memory",
    title="A rank was killed because memory was short",
    seen=(
        "SIGKILL ended the rank, and the kernel's counter of kills for lack of memory went up. Where the control "
        "group's own counter went up, its limit was reached; otherwise the host had none left. The sentence says "
        "how much each rank held shortly before."
    ),
    example="""\
FAILED    rank 1, step 2, optimizer: killed by signal 9 (SIGKILL)
  last at /home/ada/train.py:32
    for x, y in step:
  why: the kernel killed it for lack of memory: its control group may use 2.1 GB (the host has 22.1 of 25.2 GB
       free); rank 1 held 1.68 GB, rank 0 0.22 GB
""",
    why=(
        "Each rank has its own copy of the model, of its optimizer, and of what the script loads; loader workers "
        "add to that."
    ),
    what_to_do=(
        "Use a smaller batch, fewer ranks or fewer loader workers.",
        ("`--strategy zero1` keeps one optimizer state for all ranks; `pipeline` and `model_parallel` cut the model."),
        "Load data lazily or from a memory map, so that ranks share the pages.",
        "In a container or a batch job, ask for more memory: the limit is the control group's.",
    ),
)
