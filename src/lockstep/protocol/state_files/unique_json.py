"""JSON in which no object has a key twice. Readers differ in which of the two they take, so such a file says two things."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str | bytes) -> Any:
    """Decode `text`.

    Raises:
        ValueError: when it is no JSON, or an object has a key twice.
        RecursionError: when it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found
