"""A disk, or shared memory, that is full."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="full-disk",
    title="A disk or shared memory is full",
    seen=(
        "A write failed because there was no space (ENOSPC) or no quota (EDQUOT). What lockstep itself cannot "
        "write is named when it happens and again at the end, with exit code 1; training goes on."
    ),
    example="""\
FAILED    rank 0: OSError: [Errno 28] No space left on device: 'weights.pt'
  at /home/ada/train.py:5
""",
    why=(
        "States, logs or the script's files have filled the disk; `/dev/shm` is small in containers (64 MB in Docker)."
    ),
    what_to_do=(
        "Free some space, or name another place: `--log-dir`, `--states`, `TMPDIR`.",
        "Keep fewer states: `--keep 2`.",
        "In a container start with `--shm-size=2g` or `--ipc=host`.",
    ),
)
