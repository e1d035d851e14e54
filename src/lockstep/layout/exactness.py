"""Which runs do not promise the same bits, and why: one sentence, used by the start line and by `verify`."""

from __future__ import annotations

from lockstep.layout.arithmetic import NOT_EXACT

REASONS = {
    "hogwild": (
        "hogwild is not exact by nature: ranks update shared parameters without waiting for each other, so the order of "
        "updates is another one in every run."
    ),
    "dp": (
        "dp gives the bits that torch's DataParallel gives: a batch is cut by the number of replicas, and replicas on "
        "threads draw from one random generator in any order."
    ),
}


def why_not_exact(strategy: str, numerics: str | None = "exact") -> str:
    """Why bits may differ on other ranks, or in another run, as sentences; empty where they may not."""
    return REASONS.get(strategy) or (NOT_EXACT if numerics == "fast" else "")
