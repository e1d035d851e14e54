"""The scenarios that must have the same bits on any number of ranks: those with the decorator."""

from collections.abc import Callable
from typing import Any

SCENARIOS: list[Callable[[], dict[str, Any]]] = []


def scenario(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Register a function that every rank calls; what it returns must not depend on their number."""
    SCENARIOS.append(function)
    return function
