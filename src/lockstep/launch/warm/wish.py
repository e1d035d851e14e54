"""Whether a run is to keep a nursery for the next one, and for how long. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lockstep.errors import UsageError
from lockstep.launch.warm.client import NEVER, VARIABLE

_TIME = re.compile(r"([1-9][0-9]{0,6}) ?(s|m|min|h)")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_time(text: str, option: str, fix: str = "Write 90s, 10m or 2h.") -> float:
    """Seconds, from `90s`, `10m` or `2h`.

    Args:
        text: the time.
        option: of what it is the value.
        fix: what to do where it is no time.

    Raises:
        UsageError: for anything else.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} must be a time, but is {text!r}.", fix)
    return int(found[1]) * _SECONDS[found[2]]


def kept_for(variables: Mapping[str, str]) -> float:
    """How many seconds a run keeps a nursery for the next one; 0: it keeps none. A machine that only tests keeps none.

    Raises:
        UsageError: when the variable is neither a time nor `off`.
    """
    text = variables.get(VARIABLE, "")
    if text in {"", NEVER}:
        return 0.0
    seconds = parse_time(text, VARIABLE, f"Write 90s, 10m, 2h or {NEVER}.")
    return 0.0 if variables.get("CI", "").lower() not in {"", "0", "false"} else seconds
