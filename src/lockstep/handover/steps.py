"""A number of steps as people write it: `500steps`. Pure."""

from __future__ import annotations

import re

_STEPS = re.compile(r"([1-9]\d*) ?steps?")


def parse_steps(text: str) -> int | None:
    """The number, at least 1; None for anything else."""
    found = _STEPS.fullmatch(text)
    return int(found[1]) if found else None
