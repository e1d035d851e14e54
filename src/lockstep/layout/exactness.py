"""Which forms of a run do not promise the same bits, and why: one sentence, used by the start line and by `verify`."""

from __future__ import annotations

REASONS = {
    "hogwild": (
        "hogwild is not exact by nature: ranks update shared parameters without waiting for each other, so the order of "
        "updates is another one in every run"
    ),
    "dp": (
        "dp gives the bits that torch's DataParallel gives: a batch is cut by the number of replicas, and replicas on "
        "threads draw from one random generator in any order"
    ),
}
FAST = (
    'numerics="fast" is not exact by nature: it leaves the order of sums and the choice of kernels to the back end, which '
    "choose by speed"
)


def why_not_exact(strategy: str, numerics: str = "exact") -> str:
    """Why bits may differ on other ranks, or in another run; empty where they may not. No full stop at the end."""
    return REASONS.get(strategy) or (FAST if numerics == "fast" else "")
