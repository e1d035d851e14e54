"""A number of steps as people write it: `500steps`. Pure."""

from __future__ import annotations

import re
from typing import Any

_STEPS = re.compile(r"([1-9][0-9]{0,14}) ?steps?")


def parse_steps(text: Any) -> int | None:
    """The number, at least 1; None for anything else, a number that is no text too."""
    found = _STEPS.fullmatch(text) if isinstance(text, str) else None
    return int(found[1]) if found else None
