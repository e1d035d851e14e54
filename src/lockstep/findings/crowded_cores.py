"""More threads than the cores can run."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="crowded-cores",
    title="Far more threads than cores",
    seen="Ranks times threads is more than twice the number of usable cores.",
    example="""\
note      2 ranks x 9 threads on 2 cores wait for each other at every step; --threads 1 is probably faster
""",
    why="All of them compute at once, and each exchange waits for the one that gets its core last.",
    what_to_do=(
        "Start fewer ranks, or set `--threads`: the line says how many.",
        "For the same bits elsewhere keep `lanes=` and `threads=`: the number of ranks is free.",
    ),
)
