"""pytest with pretended GPUs: ranks of the test kit compute on them, unless a test says otherwise.

Under `samebits run` nothing has to be said: it finds the GPUs, and takes them where there is one for each rank. Exceptions
are in `tests.pretend.exceptions`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from samebits.testing import ranks
from tests.pretend.exceptions import BUGS, IMPOSSIBLE, reason_in

THROW_AWAY = {"large_layers", "hooks_that_fire_twice"}
"""Scenarios in which a bucket begins too early by design: what the others got is thrown away, and it begins again."""

_run_ranks = ranks.run_ranks
run_ranks_on_the_cpu = ranks.run_ranks


def run_ranks(function: Callable[..., Any], started: ranks.Started, *args: Any) -> list[Any]:
    """`run_ranks` on GPUs, with more time: every operation copies."""
    on_gpus = dataclasses.replace(started, device="cuda", timeout_s=100.0)
    return _run_ranks(watched, on_gpus, function, *args)


ranks.run_ranks = run_ranks


def watched(function: Callable[..., Any], *args: Any) -> Any:
    """In a rank: the function; it fails where a tensor was written to while it was being sent."""
    from tests.pretend.ledger import counts_so_far

    result = function(*args)
    names = {function.__name__, *(getattr(one, "__name__", "") for one in args)}
    changed = counts_so_far()["sent data changed before wait"]
    assert not changed or names & THROW_AWAY, f"{changed} tensors were written to while they were being sent"
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot be there, and expect what is known to fail."""
    for item in items:
        if reason := reason_in(IMPOSSIBLE, item.nodeid):
            item.add_marker(pytest.mark.skip(reason=reason))
        if reason := reason_in(BUGS, item.nodeid):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=False))
